"""How far local features are from a reference's, on the same inputs (FedBR Prop. 3.1).

FedBR's reference is a centrally trained model; in a run it is the model as received.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, paired, same_width
from fedloom.analysis.cka import linear_cka
from fedloom.analysis.geometry import centred, directions


@dataclass(frozen=True)
class Drift:
    """Four distances: the first two need common coordinates, the last two none."""

    cosine: float
    """1 - mean cosine of paired rows, in 0..2; rows without direction on either side left out."""
    relative: float
    """Squared distance over the reference's sum of squares about its mean; NaN if that is 0."""
    cka: float
    """1 - CKA."""
    procrustes: float
    """2 - 2 |A'B|_* of centred matrices of norm one: what no rotation and scale takes away."""
    n: int
    zero_rows: int
    null_cka: float
    """1 - CKA when the rows of one side are shuffled: no relation left."""


def feature_drift(local: Array, reference: Array, common_coordinates: bool = True) -> Drift:
    """Drift between paired features of the same inputs.

    Without common coordinates (extractors not trained from one start, or of different width) the
    cosine and relative drift are NaN, because a mere rotation would move them.

    >>> z = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> drift = feature_drift(-z, z)
    >>> drift.cosine, drift.relative, round(drift.procrustes, 9)
    (2.0, 4.0, 0.0)
    """
    moved, start = paired(local, reference)
    alignment = linear_cka(moved, start)
    cosine, relative, zero_rows = float("nan"), float("nan"), 0
    if common_coordinates:
        same_width(moved, start)
        cosine, zero_rows = _cosine(moved, start)
        if (spread := float(centred(start).square().sum())) > 0:
            relative = float((moved - start).square().sum()) / spread
    return Drift(
        cosine=cosine,
        relative=relative,
        cka=1 - alignment.value,
        procrustes=_procrustes(centred(moved), centred(start)),
        n=len(moved),
        zero_rows=zero_rows,
        null_cka=1 - alignment.null,
    )


def _cosine(moved: Tensor, start: Tensor) -> tuple[float, int]:
    (first, some), (second, others) = directions(moved), directions(start)
    both = some & others
    # |u - v|^2 / 2 = 1 - cos, and exactly zero for equal rows
    apart = (first - second)[both].square().sum(1) / 2
    return float(apart.mean()), int((~both).sum())


def _procrustes(a: Tensor, b: Tensor) -> float:
    if not (a.any() and b.any()):
        return float("nan")
    first, second = (_narrow(x / torch.linalg.matrix_norm(x)) for x in (a, b))
    return max(0.0, float(2 - 2 * torch.linalg.svdvals(first.T @ second).sum()))


def _narrow(x: Tensor) -> Tensor:
    """The same rows in at most n coordinates: x' = QR, and dropping Q turns the row space only."""
    n, d = x.shape
    return x if d <= n else torch.linalg.qr(x.T, mode="r").R.T
