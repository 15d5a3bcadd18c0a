"""kNN-Per against omarfoq/knn-per: the server's model, and every client's predictions with it."""

from __future__ import annotations

from unittest import mock

import torch
from torch import nn

from fedloom.core.message import Down
from fedloom.core.rng import rng_scope
from fedloom.core.site import Site, Visit
from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Recorded,
    federation,
    two_layers,
    under,
)
from reproduce.parity.marfoq import UNLOGGED, IndexedBatches, learner

METHOD = "knnper(k=3, {}, lr=0.1, epochs=2, batch_size=5)"
WEIGHT = 0.7


class Model(Classifier):
    """What their learner takes the features from is called `layer4` in its ResNet."""

    @property
    def layer4(self) -> nn.Module:
        return self.body


def ours(recorded: Recorded) -> list[Tree]:
    """The server's model and the probabilities of test rows, by it and the client's neighbours."""
    program = recorded.program
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server["model"])
        for cid, member in enumerate(recorded.parity.data):
            visit = Visit(program, cid, member, Down(r.plan, r.server), r.kept.get(cid))
            with rng_scope("parity", "predictions"), torch.no_grad():
                state = program.method.personalize(Site(visit))
                p = program.method.predict(program.net(cid), state, member.test.inputs)
            tree[f"client {cid}/probabilities"] = p.float()
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their averaging, and their client of the second stage on the model of every round."""
    from aggregator import CentralizedAggregator
    from client import Client, KNNPerClient
    from learners.learner import Learner

    members = recorded.parity.data
    of_clients = [IndexedBatches(m.train) for m in members]
    clients = [
        Client(
            learner(Learner, Model(recorded), lr=0.1),
            train_iterator=of_clients[cid],
            val_iterator=IndexedBatches(m.train),
            test_iterator=IndexedBatches(m.test),
            logger=mock.MagicMock(),
            local_steps=2,
        )
        for cid, m in enumerate(members)
    ]
    server = CentralizedAggregator(
        clients,
        learner(Learner, Model(recorded), lr=0.1),
        **UNLOGGED,
    )
    seen = []
    for r in recorded.rounds:
        for cid in r.cohort:
            of_clients[cid].queue = r.epochs(cid)
        server.mix()
        server.global_learner.model_name = "resnet"
        tree = under("server", server.global_learner.model.state_dict())
        for cid, m in enumerate(members):
            memory = KNNPerClient(
                server.global_learner,
                train_iterator=IndexedBatches(m.train),
                val_iterator=IndexedBatches(m.train),
                test_iterator=IndexedBatches(m.test),
                logger=mock.MagicMock(),
                local_steps=0,
                k=3,
                interpolate_logits=False,
                features_dimension=5,
                num_classes=m.classes,
                capacity=-1,
                strategy="random",
                rng=None,
            )
            memory.compute_features_and_model_outputs()
            memory.build_datastore()
            memory.gather_knn_outputs()
            mixed = WEIGHT * memory.test_knn_outputs + (1 - WEIGHT) * memory.test_model_outputs
            tree[f"client {cid}/probabilities"] = torch.tensor(mixed).float()
        seen.append(tree)
    return seen


PARITY = Parity(
    repository="omarfoq/knn-per",
    commit="ee1752027798e8ab8f57f77c6ee74f946c0f4cd7",
    method=METHOD.format(f"lam={WEIGHT}, kernel=gaussian"),
    wrong=(METHOD.format(f"lam={WEIGHT}"), METHOD.format("lam=0.6, kernel=gaussian")),
    data=federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)], test=8),
    net=two_layers,
    ours=ours,
    theirs=theirs,
    deviations=(
        Deviation(
            what="weight of a neighbour at distance d",
            paper="exp(-d)",
            code="exp(-d^2 / dimension)",
            flag="kernel=gaussian",
        ),
        Deviation(
            what="weights of the participants",
            paper="their shares of the participants' rows",
            code="their shares of all rows over the sampling rate, which need not sum to 1",
            flag="all clients take part",
        ),
    ),
)
