"""APFL against MLOPTPSU/FedTorch: the global model and every client's v, alpha fixed."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.driving import ONE_ABSENT, Classifier, absent
from reproduce.parity.harness import Batches, Deviation, Parity, Recorded, federation, under

ALPHA = 0.4
METHOD = "apfl({}, alpha=0.4, lr=0.1, epochs=2, batch_size=5, weight_decay=0.001)"


def linear() -> Net:
    """A seeded linear model, whose logits are as linear in its weights as in themselves."""
    with rng_scope("parity", "linear net"):
        return Net((6,), body=nn.Flatten(), head=nn.Linear(6, 4))


def ours(recorded: Recorded) -> list[Tree]:
    """The server's w and every client's v."""
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server["model"])
        for cid, state in r.kept.items():
            tree |= under(f"client {cid}", {k: v for k, v in state["apfl"].items() if k != "alpha"})
        rounds.append(tree)
    return rounds


def optimizer(model: nn.Module) -> Any:
    """Their optimiser without momentum."""
    from fedtorch.components.optimizers.sgd import SGD

    return SGD(model.parameters(), lr=0.1, weight_decay=0.001)


def settings(recorded: Recorded) -> Namespace:
    """What their loop reads of a node's settings, and counts in them."""
    return Namespace(
        num_comms=len(recorded.rounds),
        graph=SimpleNamespace(n_nodes=len(recorded.parity.data)),
        federated_type="apfl",
        federated_sync_type="local_step",
        fed_personal=False,
        fed_personal_alpha=ALPHA,
        fed_adaptive_alpha=False,
        old_learning_rate=0.1,
        lr_scale_at_sync=1.0,
        in_momentum=False,
        out_momentum=False,
        quantized=False,
        growing_batch_size=False,
        num_batches_train_per_device_per_epoch=1,
        rounds_comm=0,
        local_index=0,
        global_index=0,
        local_data_seen=0,
        debug=False,
    )


def node(recorded: Recorded) -> Any:
    """What a server and a client have in common."""
    model = Classifier(recorded)
    return SimpleNamespace(
        args=settings(recorded),
        model=model,
        optimizer=optimizer(model),
        criterion=nn.CrossEntropyLoss(),
        metrics=(1,),
        scheduler=lambda epoch: 0.1,
    )


def theirs(recorded: Recorded) -> list[Tree]:
    """Their loop for one process, with its measurements left out."""
    from fedtorch.comms.trainings.federated.centered import apfl

    members = recorded.parity.data

    clients = []
    for cid, member in enumerate(members):
        client = node(recorded)
        client.train_loader = Batches(member.train)
        client.model_personal = Classifier(recorded)
        client.optimizer_personal = optimizer(client.model_personal)
        client.args.local_steps = [sum(map(len, recorded.rounds[0].epochs(cid)))]
        move_together(client)
        clients.append(client)
    server = node(recorded)
    server.local_val_tracker = server.global_val_tracker = None
    server.reset_tracker, server.zero_grad = lambda tracker: None, lambda: None
    leave_zeros(server)

    seen: list[Tree] = []
    aggregate = apfl.fedavg_aggregation_centered

    def online(_: object) -> list[int]:
        r = recorded.rounds[len(seen)]
        for cid in r.cohort:
            clients[cid].train_loader.queue = r.epochs(cid)
        return r.cohort

    def aggregating(*args: Any) -> None:
        aggregate(*args)
        tree = under("server", server.model.state_dict())
        for cid, client in enumerate(clients):
            tree |= under(f"client {cid}", client.model_personal.state_dict())
        seen.append(tree)

    with (
        mock.patch.object(apfl, "set_online_clients_centered", online),
        mock.patch.object(apfl, "fedavg_aggregation_centered", aggregating),
        mock.patch.object(apfl, "load_data_batch", lambda args, x, y, tracker: (x, y)),
        mock.patch.multiple(
            apfl,
            do_validate_centered=mock.DEFAULT,
            log_validation_centered=mock.DEFAULT,
            log=mock.DEFAULT,
            logging_sync_time=mock.DEFAULT,
            logging_load_time=mock.DEFAULT,
            logging_globally=mock.DEFAULT,
        ),
    ):
        apfl.train_and_validate_apfl_centered(clients, server)
    return seen


def leave_zeros(server: Any) -> None:
    """Their sum over clients begins at the zeros that zero_grad left before torch 2."""

    def zero_grad() -> None:
        for p in server.model.parameters():
            p.grad = torch.zeros_like(p)

    server.optimizer.zero_grad = zero_grad


def move_together(client: Any) -> None:
    """w's step waits for v's, so that all gradients are taken before anything moves."""
    step_w, step_v = client.optimizer.step, client.optimizer_personal.step
    waiting: list[torch.Tensor] = []

    def wait(**_: object) -> None:
        waiting[:] = [p.grad.clone() for p in client.model.parameters()]

    def both(**options: Any) -> None:
        step_v(**options)
        for p, g in zip(client.model.parameters(), waiting, strict=True):
            p.grad = g
        step_w(**options)

    client.optimizer.step, client.optimizer_personal.step = wait, both


PARITY = Parity(
    repository="MLOPTPSU/FedTorch",
    commit="ab8068dbc96804a5c1a8b898fd115175cfebfe75",
    method=METHOD.format("learn_alpha=false, weighting=uniform"),
    wrong=(
        METHOD.format("learn_alpha=false, weighting=samples"),
        METHOD.format("learn_alpha=true, weighting=uniform"),
    ),
    # They skip a batch of one row.
    data=federation((14, 13, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=linear,
    ours=ours,
    theirs=theirs,
    cohorts=ONE_ABSENT,
    patches=(
        absent(
            "torchvision",
            "torchvision.transforms",
            "torchvision.datasets",
            "h5py",
            "six",
            "six.moves",
        ),
    ),
    deviations=(
        Deviation(
            what="the mixture",
            paper="of the weights: alpha v + (1 - alpha) w",
            code="of the two models' outputs",
            flag="a linear model, where both are the same",
        ),
        Deviation(
            what="order of the steps",
            paper="all gradients at the old values",
            code="v's gradient after w has moved",
            flag="the program's step of w is made to wait for v's",
        ),
        Deviation(
            what="the step of alpha",
            paper="along <grad f(m), v - w>, at the old values",
            code="after v and w have moved; that slope times alpha^2 + (1 - alpha)^2, plus"
            " 0.02 alpha",
            flag="learn_alpha=false on both sides",
        ),
    ),
)
