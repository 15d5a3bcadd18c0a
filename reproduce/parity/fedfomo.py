"""FedFomo against NVlabs/FedFomo: every client's trained model, and what the others' gained it."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, absent, uploads
from reproduce.parity.harness import Batches, Deviation, Parity, Recorded, federation, under

METHOD = "fedfomo(models=3, {}, lr=0.3, epochs=2, batch_size=5)"


def one_tensor() -> Net:
    """A seeded net with a single tensor."""
    with rng_scope("parity", "net of one tensor"):
        return Net((6,), body=nn.Flatten(), head=nn.Linear(6, 4, bias=False))


def ours(recorded: Recorded) -> list[Tree]:
    """Uploads and u; the server's mean is sent to nobody."""
    rounds = uploads(recorded)
    for tree, r in zip(rounds, recorded.rounds, strict=True):
        del tree["server/head.weight"]
        for cid in r.cohort:
            tree[f"client {cid}/u"] = r.up[cid].state["fedfomo"]["gains"]
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their training, and before the second round on their mixing of models."""
    with mock.patch.object(
        sys, "argv", ["main", "--model_delta_norm", "l2_root", "--baseline_model", "first_model"]
    ):
        import federation as program
        from federated import train

    members = recorded.parity.data
    of_clients = [Batches(m.train) for m in members]
    clients = [client(recorded, train, cid) for cid in range(len(members))]
    for one in clients:
        one.get_federating_clients = choosing(one, clients)
    federated: Any = program.Federation.__new__(program.Federation)
    federated.clients, federated.baseline, federated.model_weight_delta = clients, "first_model", 1
    federated.cfg, federated.model_deltas = program.cfg, {one.id: {} for one in clients}
    seen = []
    with (
        mock.patch.object(
            program.federated_network, "get_net", side_effect=lambda *_: Classifier(recorded)
        ),
        mock.patch.object(train, "tqdm", side_effect=lambda batches, **_: batches),
    ):
        for t, r in enumerate(recorded.rounds):
            if t > 0:
                federated.compute_client_weights(epoch=t, federated_models=[])
                federated.federate()
            tree: Tree = {}
            for cid, one in enumerate(clients):
                tree[f"client {cid}/u"] = gains(one, len(clients))
                one.first_model = program.init_federated_model(one.model.state_dict(), None)
                of_clients[cid].queue = r.epochs(cid)
                optimizer = torch.optim.SGD(one.model.parameters(), lr=0.3)
                for _ in range(2):
                    train.class_train(
                        of_clients[cid], one.model, optimizer, t, one.criterion, None, one
                    )
                tree |= under(f"client {cid}", one.model.state_dict())
            seen.append(tree)
    return seen


def client(recorded: Recorded, train: Any, cid: int) -> Any:
    """What their mixing and training read of a client."""
    made = SimpleNamespace(id=cid, dist_id=0, args=train.args, device="cpu", adversarial=False)
    made.model, made.criterion = Classifier(recorded), nn.CrossEntropyLoss()
    made.optim = made.scheduler = None
    made.train_size = len(recorded.parity.data[cid].train)
    made.client_weights = [0.0] * len(recorded.parity.data)
    made.population = SimpleNamespace(num_clients=len(recorded.parity.data))
    made.model_weights_over_time, made.client_weights_over_time = [], []
    made.model_deltas = []

    def evaluate(epoch: int, model: nn.Module, args: object) -> float:
        rows = Batches(recorded.parity.data[cid].val)
        loss: float = train.class_eval(rows, model, epoch, made.criterion, None, None)[0]
        return loss

    def update(state: Tree) -> None:
        made.model = Classifier(recorded)
        made.model.load_state_dict(state)
        made.optim = made.scheduler = None

    made.eval, made.update_model = evaluate, update
    return made


def choosing(one: Any, clients: list[Any]) -> Any:
    """Every client asks for all models, its own first."""

    def chosen(**_: object) -> list[Any]:
        asked = [one, *(other for other in clients if other is not one)]
        one.federating_client_ids = [other.id for other in asked]
        return asked

    return chosen


def gains(one: Any, count: int) -> torch.Tensor:
    """Their u of the others' models by id; nothing before the first mixing."""
    u = torch.zeros(count)
    for other, value in zip(getattr(one, "model_ids", []), one.model_deltas, strict=True):
        if other != one.id:
            u[other] = float(value)
    return u


PARITY = Parity(
    repository="NVlabs/FedFomo",
    commit="fe04f6641407bce4fc58ea3fbf8cb314f9af8629",
    method=METHOD.format("baseline=before"),
    wrong=(METHOD.format("baseline=current"), METHOD.format("baseline=before, clip=0.5")),
    data=[
        replace(member, val=member.test)
        for member in federation((14, 11, 17), held=[(0, 1), (0, 1, 2), (1, 2, 3)], test=9)
    ],
    net=one_tensor,
    ours=ours,
    theirs=theirs,
    patches=(absent("torchvision", "opacus"),),
    deviations=(
        Deviation(
            what="distance of two models",
            paper="the L2 norm of all weights",
            code="by default the L1 norm; its option l2_root adds the norms of the tensors",
            flag="l2_root and a network with one tensor, where it is the L2 norm",
        ),
        Deviation(
            what="the server's affinities",
            paper="the identity at first; u is added",
            code="a tenth of the identity; u over |sum of u| is added",
            flag="models=3 of three clients, so that all are sent whatever the affinities",
        ),
    ),
)
