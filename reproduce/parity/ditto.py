"""Ditto against litian96/ditto: the global model and every personal one.

The program is written for TensorFlow 1, which computes gradients only; the algorithm is NumPy. It
is driven with gradients by torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import SKEWED, Classifier, absent
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Recorded,
    two_layers,
    under,
)

METHOD = "ditto({}, lr=0.1, steps=5, batch_size=5)"
Pair = tuple[Tensor, Tensor]


def tensorflow_without_gradients() -> None:
    """Empty modules for tensorflow, whose part, the gradients, torch has."""
    absent("tensorflow")()


class Learner:
    """What their trainer asks of a model: parameters, and a step of gradient descent."""

    size = 0

    def __init__(self, recorded: Recorded) -> None:
        self.module = Classifier(recorded)

    def get_params(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.module.parameters()]

    def set_params(self, params: list[np.ndarray]) -> None:
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), params, strict=True):
                p.copy_(torch.tensor(value))

    def solve_sgd(self, batch: list[Pair]) -> tuple[list[np.ndarray], float, list[np.ndarray]]:
        """A step on the next of the two batches that an iteration brings, and its gradient."""
        x, y = batch.pop(0)
        loss = nn.functional.cross_entropy(self.module(x), y)
        grads = torch.autograd.grad(loss, list(self.module.parameters()))
        with torch.no_grad():
            for p, g in zip(self.module.parameters(), grads, strict=True):
                p.sub_(0.1 * g)
        return [g.numpy() for g in grads], float(loss), self.get_params()

    def get_loss(self, data: object) -> float:
        return 0.0  # read by their variant for fair losses only

    def close(self) -> None:
        pass


def ours(recorded: Recorded) -> list[Tree]:
    """The server's model and every client's v."""
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server["model"])
        for cid, state in r.kept.items():
            tree |= under(f"client {cid}", state["ditto"])
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their trainer's own loop over rounds."""
    from flearn.trainers_MTL import ditto

    members = recorded.parity.data
    names = [str(cid) for cid in range(len(members))]
    empty = {name: {"x": [], "y": []} for name in names}
    keys = [k for k, _ in Classifier(recorded).named_parameters()]
    switched_off = ("num_corrupted", "boosting", "random_updates", "gradient_clipping", "median")
    params = dict.fromkeys(
        (*switched_off, "k_norm", "krum", "mkrum", "dynamic_lam", "q", "seed"), 0
    )
    params |= {
        "clients_per_round": len(members),
        "num_rounds": len(recorded.rounds) - 1,  # they run one more
        "local_iters": 5,
        "eval_every": 100,
        "batch_size": 5,
        "learning_rate": 0.1,
        "lam": 0.8,
        "dataset": "none",
        "model_params": (recorded,),
    }
    with mock.patch.object(ditto, "gen_batch", side_effect=batches(recorded)):
        server: Any = ditto.Server(params, lambda run, *_: Learner(run), (names, [], empty, empty))
        seen: list[Tree] = []

        def look() -> None:
            tree = under("server", tensors(keys, server.global_model))
            for cid, own in enumerate(server.local_models):
                tree |= under(f"client {cid}", tensors(keys, own))
            seen.append(tree)

        def select(round: int, num_clients: int) -> tuple[list[int], None]:
            if round:
                look()
            return recorded.rounds[round].cohort, None

        server.select_clients = select
        server.train()
        look()
    return seen


def batches(recorded: Recorded) -> list[Iterator[list[Pair]]]:
    """Of every client, iteration by iteration: a batch for v and one for w."""

    def of_client(cid: int) -> Iterator[list[Pair]]:
        rows = recorded.parity.data[cid].train
        for r in recorded.rounds:
            personal = [b for epoch in r.epochs(cid, "personal") for b in epoch]
            shared = [b for epoch in r.epochs(cid, "local") for b in epoch]
            for pair in zip(personal, shared, strict=True):
                yield [(rows.inputs[b], rows.y[b]) for b in pair]

    return [of_client(cid) for cid in range(len(recorded.parity.data))]


def tensors(keys: list[str], arrays: list[np.ndarray]) -> Tree:
    """Their layers under our keys."""
    return {k: torch.tensor(a, dtype=torch.float32) for k, a in zip(keys, arrays, strict=True)}


PARITY = Parity(
    repository="litian96/ditto",
    commit="26d9b29a62f3872dcdf071be08e897607c283bb4",
    method=METHOD.format("lam=0.8, weighting=uniform"),
    wrong=(
        METHOD.format("lam=0.8, weighting=samples"),
        METHOD.format("lam=0.7, weighting=uniform"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    patches=(tensorflow_without_gradients,),
    deviations=(
        Deviation(
            what="weights of the clients",
            paper="any solver of the global problem; federated averaging weighs by samples",
            code="the same for every participant",
            flag="weighting=uniform",
        ),
        Deviation(
            what="batches of the two models",
            paper="open",
            code="v and w take a step on the same batch",
            flag="every iteration is given two batches, as ours draws two",
        ),
    ),
)
