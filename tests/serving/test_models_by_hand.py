"""What a handed-out model predicts, computed once more in plain torch from what a run's server and
client hold: nothing of fedloom's networks, sites or methods takes part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom import FederatedData, run
from fedloom.core.tree import State, Tree
from fedloom.runs.result import Result

CLIENT = 1
RNG = np.random.default_rng(0)
SITES = [(RNG.normal(3, 2, size=(24, 4)), np.arange(24) % 3) for _ in range(3)]
NEW = torch.from_numpy(RNG.normal(3, 2, size=(7, 4))).float()


def features(w: Tree, x: Tensor, body: str = "body") -> Tensor:
    return (x @ w[f"{body}.1.weight"].T + w[f"{body}.1.bias"]).relu()


def classes(w: Tree, z: Tensor, head: str = "head") -> Tensor:
    return (z @ w[f"{head}.weight"].T + w[f"{head}.bias"]).softmax(1)


def fedper(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """The common body and the client's head."""
    return classes(own["model"], features(server["model"], x))


def apfl(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """Every weight is alpha of the client's own and 1 - alpha of the common one."""
    alpha = own["apfl"]["alpha"]
    common = server["model"]
    w = {k: alpha * own["apfl"][k] + (1 - alpha) * common[k] for k in common}
    return classes(w, features(w, x))


def fedem(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """The models' probabilities, mixed by the client's own shares."""
    w, pi = server["model"], own["fedem"]["pi"]
    predictions = [
        classes(w, features(w, x, f"body{i}"), f"head{i}") for i in ("", *(f"_{m}" for m in (2, 3)))
    ]
    return sum((share * p for share, p in zip(pi, predictions, strict=True)), torch.zeros(()))


def dbe(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """Eq. (4): the head reads the features and the client's bias."""
    w = server["model"]
    return classes(w, features(w, x) + own["model"]["prbm.vector"])


def knnper(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """Half by the model, half by the ten nearest training rows, each with e^-distance."""
    w = server["model"]
    z, stored = features(w, x), features(w, train)
    votes = torch.zeros(len(x), 3)
    for row, point in enumerate(z):
        distance = (stored - point).square().sum(1).sqrt()
        for neighbour in distance.argsort()[:10]:
            votes[row, y[neighbour]] += torch.exp(-distance[neighbour])
    return 0.5 * votes / votes.sum(1, keepdim=True) + 0.5 * classes(w, z)


def fedproto(server: State, own: State, x: Tensor, train: Tensor, y: Tensor) -> Tensor:
    """Softmax of minus half the squared distance to the mean features of every class."""
    distance = features(own["model"], x)[:, None] - server["fedproto"]["prototypes"]
    return (-distance.square().sum(2) / 2).softmax(1)


METHODS: dict[str, Callable[[State, State, Tensor, Tensor, Tensor], Tensor]] = {
    "fedper": fedper,
    "apfl": apfl,
    "fedem": fedem,
    "fedavg + dbe": dbe,
    "knnper": knnper,
    "fedproto": fedproto,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_handed_out_model_is_what_its_method_says(method: str) -> None:
    data = FederatedData.from_clients(SITES)
    result: Result = run(method, data, model="mlp(hidden=[8])", rounds=2, progress=False)
    raw = torch.from_numpy(np.asarray(data.source.x))
    rows = [client.train for client in data.partition.clients]
    pooled = raw[np.concatenate(rows)].double()
    mean, deviation = pooled.mean(0).float(), pooled.std(0, correction=0).float()

    def normalised(x: Tensor) -> Tensor:
        return (x - mean) / deviation

    train = rows[CLIENT]
    expected = METHODS[method](
        result.server,
        result.clients.get(CLIENT, {}),
        normalised(NEW),
        normalised(raw[train].float()),
        torch.from_numpy(data.source.y[train]),
    )
    predicted = result.client(CLIENT).predict(NEW)
    assert torch.allclose(predicted, expected.to(predicted), atol=1e-5)
    assert not torch.allclose(predicted, result.client(0).predict(NEW), atol=1e-4)
