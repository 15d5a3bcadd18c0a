"""kNN-Per: the global model's prediction mixed with the votes of local nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.neighbours import Kernel, neighbour_votes

GRID = 10
"""Client by client, lam is one of 0, 1/GRID, ..., 1."""
UNTUNED = 0.5
"""lam of a client that has nothing to tune it on."""


@register
@dataclass(frozen=True, kw_only=True)
class KNNPer(Method):
    """Personalization through local memorization (Marfoq et al., ICML 2022, section 3).

    phi(x) is the representation of the model the client holds::

        rounds    as FedAvg
        client i  stores (phi(x_j), y_j) of its training rows
        at a test N(x): the k stored rows nearest to phi(x)
                  p_knn(c|x) ~ sum_{j in N(x), y_j = c} e^{-|phi(x) - phi(x_j)|}
                  p = lam p_knn + (1 - lam) softmax of the model

    Both are probabilities. A client with fewer than k rows votes with all of them.

    Hyper-parameters: `k` 10; `lam` 0.5 (FedPAC: best of {0.5, 0.6, 0.7, 0.8}), or None: each
    client takes the value of 0, 0.1, ..., 1 with the best accuracy on its validation rows (the
    paper's tuning), the smallest of equals; a client without such rows takes 0.5.

    Deviations: `kernel="gaussian"`, e^{-d^2 / dim}, is the published code's. phi is the network's
    raw representation, before anything a term inserts. Search is exact.

    Leaves the client: the model's update; never the stored features.

    >>> KNNPer(lam=0.8).k
    10
    """

    name: ClassVar[str] = "knnper"
    family: ClassVar[str] = "personal model"
    k: int = 10
    lam: float | None = 0.5
    kernel: Kernel = "distance"

    def __post_init__(self):
        super().__post_init__()
        if self.k < 1:
            raise BadInput(f"k is 1 or more neighbours, not {self.k}")
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise BadInput(f"lam mixes two predictions and lies between 0 and 1, not at {self.lam}")

    def personalize(self, s):
        stored = {
            "z": s.scan(s.net.representation).flatten(1),
            "y": s.data.train.y.to(s.device),
        }
        lam = self._tuned(s, stored) if self.lam is None else self.lam
        lam = torch.tensor(lam, dtype=torch.float64, device=s.device)
        return {"model": s.w, self.name: {**stored, "lam": lam}}

    def predict(self, net, state, x):
        stage, stored = net.representation, state[self.name]
        out = net(state["model"], x, want=net.logits)
        voted = self._votes(out[stage], stored, out[net.logits].shape[-1])
        return stored["lam"] * voted + (1 - stored["lam"]) * out[net.logits].softmax(-1)

    def _votes(self, z, stored, classes):
        return neighbour_votes(z.flatten(1), stored["z"], stored["y"], self.k, classes, self.kernel)

    def _tuned(self, s, stored):
        """The weight of the votes with the best accuracy on the client's validation rows."""
        if not s.data.val:
            return UNTUNED
        voted = self._votes(s.scan(s.net.representation, split=s.data.val), stored, s.data.classes)
        model = s.scan(s.net.logits, split=s.data.val).softmax(-1)
        y, grid = s.data.val.y.to(s.device), [i / GRID for i in range(GRID + 1)]
        hits = [int(((a * voted + (1 - a) * model).argmax(-1) == y).sum()) for a in grid]
        return grid[hits.index(max(hits))]
