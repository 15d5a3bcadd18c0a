"""How far local features are from a reference's, on the same inputs (FedBR Prop. 3.1).

FedBR's reference is a centrally trained model; in a run it is the model as received.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, paired, same_width
from fedloom.analysis.cka import cka_of_grams
from fedloom.analysis.geometry import FewColumns


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


@dataclass(frozen=True, eq=False)
class RowDrift:
    """How far each row moved, in common coordinates."""

    cosine: Tensor
    """[n], 1 - cosine; NaN of a row without direction on either side."""
    squared: Tensor
    """[n], squared distance."""

    def __getitem__(self, rows: Tensor) -> RowDrift:
        return RowDrift(self.cosine[rows], self.squared[rows])


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
    rows = row_drift(moved, start) if common_coordinates else None
    return drift_of(FewColumns.of(moved), FewColumns.of(start), rows)


def row_drift(local: Array, reference: Array) -> RowDrift:
    """What paired features of the same inputs moved by, row by row.

    >>> row_drift(torch.tensor([[0.0, 2.0], [0, 0]]), torch.tensor([[1.0, 0.0], [0, 3]])).squared
    tensor([5., 9.], dtype=torch.float64)
    """
    moved, start = paired(local, reference)
    same_width(moved, start)
    first, second = (torch.linalg.vector_norm(x, dim=1) for x in (moved, start))
    squared = (moved - start).square_().sum(1)
    # |x - y|^2 = (|x| - |y|)^2 + 2 |x| |y| (1 - cos), and exactly zero for equal rows
    apart = (squared - (first - second).square()).clamp_min(0) / (2 * first * second)
    directed = (first > 0) & (second > 0)
    return RowDrift(torch.where(directed, apart, torch.nan), squared)


def drift_of(moved: FewColumns, start: FewColumns, rows: RowDrift | None) -> Drift:
    """From what the rows moved by, and from features of which only inner products are read."""
    alignment = cka_of_grams([moved.gram, start.gram])
    cosine, relative, zero_rows = float("nan"), float("nan"), 0
    if rows is not None:
        directed = ~rows.cosine.isnan()
        cosine, zero_rows = float(rows.cosine[directed].mean()), int((~directed).sum())
        if (spread := float(start.gram.trace())) > 0:
            relative = float(rows.squared.sum()) / spread
    return Drift(
        cosine=cosine,
        relative=relative,
        cka=1 - alignment.mean,
        procrustes=_procrustes(moved.columns, start.columns),
        n=len(moved.gram),
        zero_rows=zero_rows,
        null_cka=1 - alignment.null,
    )


def _procrustes(a: Tensor, b: Tensor) -> float:
    if not (a.any() and b.any()):
        return float("nan")
    first, second = (x / torch.linalg.matrix_norm(x) for x in (a, b))
    return max(0.0, float(2 - 2 * torch.linalg.svdvals(first.T @ second).sum()))
