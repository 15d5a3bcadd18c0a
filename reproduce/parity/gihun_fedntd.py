"""The program of FedNTD's authors, Lee-Gihun/FedNTD, which also runs FedProx and SCAFFOLD."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from fedloom.core.tree import Tree
from reproduce.parity.driving import ONE_ABSENT, SKEWED, Classifier, absent, uploads
from reproduce.parity.harness import Batches, Parity, Recorded, two_layers, under

REPOSITORY = "Lee-Gihun/FedNTD"
COMMIT = "be00ee598139654abe650c446a7ba3bc4e340233"
LOGGING = absent("wandb")
TRAINING = "lr=0.1, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.001"


def compared(term: str, right: str, wrong: tuple[str, ...], **parameters: object) -> Parity:
    """A comparison of federated averaging and a term with the algorithm of the term's name."""
    method = f"fedavg({TRAINING}) + {term}({{}})"
    algorithm = "fedprox" if term == "proximal" else term

    def theirs(recorded: Recorded) -> list[Tree]:
        return drive(recorded, algorithm, **parameters)

    return Parity(
        repository=REPOSITORY,
        commit=COMMIT,
        method=method.format(right),
        wrong=tuple(method.format(settings) for settings in wrong),
        data=SKEWED,
        net=two_layers,
        ours=uploads,
        theirs=theirs,
        cohorts=ONE_ABSENT,
        patches=(LOGGING,),
    )


def drive(
    recorded: Recorded,
    algorithm: str,
    more: Callable[[Any], Tree] = lambda server: {},
    momentum: float = 0.9,
    weight_decay: float = 0.001,
    **parameters: object,
) -> list[Tree]:
    """Their server's run: its model and the uploads after each round, and what `more` names."""
    module = importlib.import_module(f"algorithms.{algorithm}.Server")
    members = recorded.parity.data
    of_clients = [Batches(m.train) for m in members]
    model = Classifier(recorded)
    rates = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    server = module.Server(
        Namespace(**parameters),
        model,
        {
            "num_classes": members[0].classes,
            "global": {"test": Batches(members[0].test)},
            "local": {
                cid: {"datasize": len(m.train), "train": of_clients[cid]}
                for cid, m in enumerate(members)
            },
        },
        torch.optim.SGD(model.parameters(), **rates),
        scheduler=None,
        n_rounds=len(recorded.rounds),
        sample_ratio=1.0,
        local_epochs=2,
        device="cpu",
    )
    seen: list[Tree] = []
    average = server._aggregation
    sent: list[list[Tree]] = []

    def sampling(round_index: int) -> list[int]:
        r = recorded.rounds[round_index]
        server.sample_ratio = len(r.cohort) / len(members)
        for cid in r.cohort:
            of_clients[cid].queue = r.epochs(cid)
        return r.cohort

    def averaging(weights: list[Tree], sizes: list[int]) -> Tree:
        sent.append(weights)
        averaged: Tree = average(weights, sizes)
        return averaged

    def updating(weights: Tree, results: object, round_index: int, start: float) -> None:
        model.load_state_dict(weights)
        tree = under("server", model.state_dict()) | more(server)
        for cid, upload in zip(recorded.rounds[round_index].cohort, sent[-1], strict=True):
            tree |= under(f"client {cid}", upload)
        seen.append(tree)

    with (
        mock.patch.object(server, "_client_sampling", sampling),
        mock.patch.object(server, "_aggregation", averaging),
        mock.patch.object(server, "_update_and_evaluate", updating),
    ):
        server.run()
    return seen
