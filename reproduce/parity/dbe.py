"""DBE on FedAvg against TsingZ0/DBE: model, bias memories, the clients' means and their mean."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import defaultdict
from typing import Any
from unittest import mock

import torch

from fedloom.core.tree import Tree
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    empty_module,
    federation,
    module_of,
    two_layers,
    under,
)

CLASSES = 4
METHOD = "fedavg(lr=0.05, epochs=2, batch_size=5, drop_last=true) + dbe({})"
PUBLISHED = "kappa=5.0, mu=0.4, half=true, mean=running, init_epochs=none"


def empty_h5py() -> None:
    """h5py, which only stores accuracies, is an empty module."""
    empty_module("h5py")


def empty_matplotlib() -> None:
    """matplotlib, which only draws what an attack on gradients finds, is an empty module."""
    empty_module("matplotlib")
    empty_module("matplotlib.pyplot")


def ours(recorded: Recorded) -> list[Tree]:
    """The server's model and every client's z_p; in the first round also the means behind z_g."""
    before, *rounds = recorded.rounds
    means = under("server", {"mean": before.server["mean_regularization"]["mean"]})
    for cid, up in before.up.items():
        means |= under(f"client {cid}", up.state["mean_regularization"])
    trees = []
    for r in rounds:
        tree = under("server", r.server["model"])
        for cid, kept in r.kept.items():
            tree |= {f"client {cid}/z_p": kept["model"]["prbm.vector"].clone()}
        trees.append(tree)
    trees[0] |= means
    return trees


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server with all of its steps; batches and cohorts are handed to it."""
    from flcore.clients.clientDBE import clientDBE
    from flcore.servers import serverbase
    from flcore.servers.serverDBE import FedDBE
    from flcore.trainmodel.models import BaseHeadSplit

    members = recorded.parity.data
    before, *rounds = recorded.rounds
    loaders = [Batches(m.train) for m in members]
    for cid, loader in enumerate(loaders):  # a client looks at one batch when it is made
        loader.queue = [loader.in_order, *before.epochs(cid)]
    trees: list[Tree] = []

    class Driven(FedDBE):
        def select_clients(self) -> list[Any]:
            r = rounds[len(trees)]
            self.current_num_join_clients = len(r.cohort)
            for cid in r.cohort:
                loaders[cid].queue = list(r.epochs(cid))
            return [self.clients[cid] for cid in r.cohort]

        def evaluate(self) -> None:
            self.rs_test_acc.append(0.0)

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            trees.append(named(self))

        def save_results(self) -> None: ...

        def save_global_model(self) -> None: ...

    copies = module_of(recorded.program.nets[0], "body", "head")
    args = defaultdict(
        int,
        model=BaseHeadSplit(copies.body, copies.head),
        device="cpu",
        num_clients=len(members),
        num_classes=CLASSES,
        join_ratio=1.0,
        global_rounds=len(rounds) - 1,
        eval_gap=1,
        local_epochs=2,
        local_learning_rate=0.05,
        learning_rate_decay_gamma=1.0,
        time_threthold=float("inf"),
        kl_weight=5.0,
        momentum=0.4,
    )
    with (
        mock.patch.object(serverbase, "read_client_data", lambda _, i, is_train: members[i].train),
        mock.patch.object(clientDBE, "load_train_data", lambda self: loaders[self.id]),
    ):
        server = Driven(AllArguments(args), times=0)
        means = {"server/mean": server.clients[0].global_mean.clone()}
        means |= {f"client {c.id}/mean": c.running_mean.clone() for c in server.clients}
        random.seed(0)  # they sum the clients' models in random order
        server.train()
    trees[0] |= means
    return trees


class AllArguments(Namespace):
    """Their command line's arguments; those that are not set here are 0."""

    def __init__(self, values: defaultdict[str, Any]) -> None:
        super().__init__(**values)

    def __getattr__(self, name: str) -> int:
        return 0


def named(server: Any) -> Tree:
    """Their tensors of one round."""
    model = {k.replace("base.", "body."): v for k, v in server.global_model.state_dict().items()}
    tree = under("server", model)
    for client in server.clients:
        tree |= {f"client {client.id}/z_p": client.client_mean.detach().clone()}
    return tree


PARITY = Parity(
    repository="TsingZ0/DBE",
    commit="193f4355214004099b4305e0052745960b2660c2",
    folder="system",
    method=METHOD.format(PUBLISHED),
    wrong=(
        METHOD.format("kappa=5.0, mu=0.4"),
        METHOD.format(PUBLISHED.replace("half=true", "half=false")),
        METHOD.format(PUBLISHED.replace("mean=running", "mean=data")),
        METHOD.format(PUBLISHED.replace("init_epochs=none", "init_epochs=1")),
        METHOD.format(PUBLISHED.replace("mu=0.4", "mu=0.5")),
    ),
    data=federation((14, 11, 17), CLASSES, held=[(0, 1, 2), (1, 2, 3), (0, 3)]),
    net=lambda: two_layers(classes=CLASSES, activation=torch.nn.ReLU),
    ours=ours,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    patches=(empty_h5py, empty_matplotlib),
    deviations=(
        Deviation(
            what="strength of the mean regularisation",
            paper="kappa times the mean squared error",
            code="half of that",
            flag="half=true",
        ),
        Deviation(
            what="the mean that a client reports",
            paper="the mean of the representation over the client's data",
            code="the running mean at the end of the first training",
            flag="mean=running",
        ),
        Deviation(
            what="length of the first training",
            paper="one epoch",
            code="as many epochs as a round has",
            flag="init_epochs=none",
        ),
        Deviation(
            what="incomplete batches",
            paper="not stated",
            code="an incomplete last batch is left out",
            flag="drop_last=true",
        ),
        Deviation(
            what="BatchNorm",
            paper="not stated",
            code="running statistics stay with the client, those of the first training included",
            flag="not compared: the network has no BatchNorm;"
            " fedavg(shared='* !@stats') keeps them too",
        ),
    ),
)
