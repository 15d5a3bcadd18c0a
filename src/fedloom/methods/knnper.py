"""kNN-Per: the global model's prediction mixed with the votes of local nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Integer, Linear, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.neighbours import Kernel, neighbour_votes

GRID = 10
"""Where each client tunes its own lam, it chooses among 0, 1/GRID, ..., 1."""
UNTUNED = 0.5
"""The lam of a client that has no validation rows to tune it on."""


@register
@dataclass(frozen=True, kw_only=True)
class KNNPer(Method):
    """Personalization through local memorization (Marfoq et al., ICML 2022, section 3).

    Let phi(x) be the representation that the client's model makes of an input x::

        rounds    as FedAvg
        client i  stores (phi(x_j), y_j) of its training rows
        at a test N(x): the k stored rows nearest to phi(x)
                  p_knn(c|x) ~ sum_{j in N(x), y_j = c} e^{-|phi(x) - phi(x_j)|}
                  p = lam p_knn + (1 - lam) softmax of the model

    p_knn is normalised over the classes. With fewer than k stored rows, all of them vote.

    Hyper-parameters: `k` 10. `lam` 0.5 (FedPAC takes the best of {0.5, 0.6, 0.7, 0.8}); None, the
    paper's tuning: each client takes that of 0, 0.1, ..., 1 which has the best accuracy on its
    validation rows, the smallest of several equally good ones; a client without validation rows
    takes 0.5.

    Deviations: `kernel="gaussian"` is the published code's weight of a vote, e^{-d^2 / dim} for a
    neighbour at distance d. phi is the network's raw representation, before anything that a term
    inserts. The search for neighbours is exact.

    Leaves the client: the model, as in FedAvg; never the stored features.

    >>> KNNPer(lam=0.8).k
    10
    """

    name: ClassVar[str] = "knnper"
    family: ClassVar[str] = "personal model"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    # FedPAC's grid of lam is 0.5 to 0.8.
    tunable: ClassVar[Tunable] = {"k": Integer(5, 20), "lam": Linear(0.1, 0.9)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    k: int = 10
    lam: float | None = 0.5
    kernel: Kernel = "distance"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise BadInput(f"k is 1 or more neighbours, not {self.k}")
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise BadInput(f"lam mixes two predictions and lies between 0 and 1, not at {self.lam}")

    def personalize(self, s: Site) -> State:
        stored = {
            "z": s.scan(s.net.representation).flatten(1),
            "y": s.data.train.y.to(s.device),
        }
        lam = self._tuned(s, stored) if self.lam is None else self.lam
        stored["lam"] = torch.tensor(lam, dtype=torch.float64, device=s.device)
        return {"model": s.w, self.name: stored}

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        stored = state[self.name]
        out = net(state["model"], x, want=net.logits)
        p_model = out[net.logits].softmax(-1)
        p_knn = self._votes(out[net.representation], stored, classes=p_model.shape[-1])
        return stored["lam"] * p_knn + (1 - stored["lam"]) * p_model

    def _votes(self, z: Tensor, stored: Tree, classes: int) -> Tensor:
        """p_knn [n, K] for representations z of n inputs."""
        return neighbour_votes(z.flatten(1), stored["z"], stored["y"], self.k, classes, self.kernel)

    def _tuned(self, s: Site, stored: Tree) -> float:
        """The lam with the best accuracy on the client's validation rows."""
        val = s.data.val
        if not val:
            return UNTUNED
        p_knn = self._votes(s.scan(s.net.representation, split=val), stored, s.data.classes)
        p_model = s.scan(s.net.logits, split=val).softmax(-1)
        y = val.y.to(s.device)
        best_lam, most_hits = UNTUNED, -1
        for i in range(GRID + 1):
            lam = i / GRID
            p = lam * p_knn + (1 - lam) * p_model
            hits = int((p.argmax(-1) == y).sum())
            if hits > most_hits:
                best_lam, most_hits = lam, hits
        return best_lam
