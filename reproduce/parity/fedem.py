"""FedEM against omarfoq/FedEM: the learners of the server, and every client's mixture weights."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from fedloom.core.tree import Tree
from reproduce.parity.driving import SKEWED, Classifier
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Recorded,
    two_layers,
    under,
)
from reproduce.parity.marfoq import UNLOGGED, IndexedBatches, learner

LEARNERS = 3
METHOD = "fedem(learners=3, {}, lr=0.3, epochs=2, batch_size=5)"


def key_of_learner(key: str, m: int) -> str:
    """Where the net keeps a tensor of learner m = 0, 1, ...

    >>> key_of_learner("head.weight", 2)
    'head_3.weight'
    """
    stage, leaf = key.split(".", 1)
    return key if m == 0 else f"{stage}_{m + 1}.{leaf}"


def ours(recorded: Recorded) -> list[Tree]:
    """The server's learners and every client's pi."""
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server["model"])
        for cid, state in r.kept.items():
            tree[f"client {cid}/pi"] = state["fedem"]["pi"]
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their clients and their aggregator."""
    from aggregator import CentralizedAggregator
    from client import MixtureClient
    from learners.learner import Learner
    from learners.learners_ensemble import LearnersEnsemble

    def ensemble() -> Any:
        learners = []
        for m in range(LEARNERS):
            model = Classifier(recorded)
            initial = {k: recorded.initial[key_of_learner(k, m)] for k in model.state_dict()}
            model.load_state_dict(initial)
            learners.append(learner(Learner, model, lr=0.3))
        return LearnersEnsemble(learners, torch.full((LEARNERS,), 1 / LEARNERS))

    members = recorded.parity.data
    of_clients = [IndexedBatches(m.train) for m in members]
    clients = [
        MixtureClient(
            ensemble(),
            train_iterator=of_clients[cid],
            val_iterator=IndexedBatches(m.train),  # the training rows, for the E step
            test_iterator=IndexedBatches(m.test),
            logger=mock.MagicMock(),
            local_steps=2,
        )
        for cid, m in enumerate(members)
    ]
    server = CentralizedAggregator(
        clients,
        ensemble(),
        **UNLOGGED,
    )
    seen = []
    for r in recorded.rounds:
        for cid in r.cohort:
            of_clients[cid].queue = r.epochs(cid) * LEARNERS  # each learner passes over the rows
        server.mix()
        tree: Tree = {}
        for m, one in enumerate(server.global_learners_ensemble.learners):
            state = one.model.state_dict()
            tree |= under("server", {key_of_learner(k, m): v for k, v in state.items()})
        for cid, client in enumerate(clients):
            tree[f"client {cid}/pi"] = client.learners_ensemble.learners_weights.clone()
        seen.append(tree)
    return seen


PARITY = Parity(
    repository="omarfoq/FedEM",
    commit="996faddf865fd03c6852b7ffe64410e31b339e94",
    method=METHOD.format("weighting=samples"),
    wrong=(METHOD.format("weighting=uniform"), METHOD.format("weighting=samples, clip=0.5")),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    deviations=(
        Deviation(
            what="order of the learners' steps",
            paper="one learner after the other",
            code="one learner after the other, each with batches of its own",
            flag="every learner gets the batches that ours train on together",
        ),
        Deviation(
            what="clients that do not take part",
            paper="the mean is over the participants",
            code="their learners, which are the server's old ones, count in the mean",
            flag="all clients take part",
        ),
    ),
)
