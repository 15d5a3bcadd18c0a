"""Linear CKA between clients on the same rows, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.analysis.cka import cka_between_clients
from fedloom.analysis.ridge_probe import in_few_columns
from fedloom.diagnose.measures.base import Measure, Options, Outcome
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.record import When


class Alignment(Measure):
    """How alike two clients' features of the same inputs are (DualFed Figure 6)."""

    name: ClassVar[str] = "cka"

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._features: dict[tuple[str, When], dict[int, Tensor]] = {}
        self._last: dict[tuple[str, When], tuple[Tensor, Tensor]] = {}

    def see(self, client: ClientView) -> None:
        whens: tuple[When, ...] = ("before", "after")
        for when in whens:
            for layer, z in getattr(client, when).features(client.balanced).items():
                kept = self._narrow((layer, when), z)
                self._features.setdefault((layer, when), {})[client.cid] = kept

    def _narrow(self, at: tuple[str, When], z: Tensor) -> Tensor:
        """CKA reads inner products only, so that no layer takes more than n columns; and where all
        share an extractor, one matrix stands for all."""
        if at in self._last and torch.equal(self._last[at][0], z):
            return self._last[at][1]
        kept = in_few_columns(z.double()).float() if z.shape[1] > len(z) else z
        self._last[at] = z, kept
        return kept

    def outcomes(self) -> Iterator[Outcome]:
        for (layer, when), features in self._features.items():
            yield Outcome(when, layer, "bal", _result(features), {"debiased": False})


def _result(features: dict[int, Tensor]) -> dict[str, Any]:
    if len(features) < 2:
        return {"skipped": "CKA compares clients with each other, and only one has this layer"}
    matrices = list(features.values())
    found, debiased = cka_between_clients(matrices), cka_between_clients(matrices, debiased=True)
    first, second = torch.triu_indices(len(matrices), len(matrices), 1)
    pairs = found.matrix[first, second]
    return {
        "clients": list(features),
        "matrix": found.matrix.tolist(),
        "mean": found.mean,
        "smallest": float(pairs.min()),
        "largest": float(pairs.max()),
        "null": found.null,
        "debiased_mean": debiased.mean,
        "n": found.n,
    }
