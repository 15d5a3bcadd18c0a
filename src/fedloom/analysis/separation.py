"""Class-wise separation by cosine distance (Kornblith et al. 2021; DualFed Figure 5).

R^2 = 1 - within / total with u = z/|z|, mu_k the mean of class k's unit vectors, mu their mean over
the K classes: within = 1 - mean_k |mu_k|^2, total = 1 - |mu|^2. It is a measure inside one client;
never pool the features of several.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct
from fedloom.analysis.geometry import ROUNDING, directions
from fedloom.ops.prototypes import class_means


@dataclass(frozen=True)
class Separation:
    """R^2 and what it was measured on; NaN with fewer than two classes or with one direction."""

    value: float
    within: float
    total: float
    n: int
    """Rows used."""
    classes: int
    """Classes used."""
    zero_rows: int
    """Rows dropped because they have no direction."""
    small_class_rows: int
    """Rows dropped because their class has too few."""
    null: float
    """What shuffled labels give (ratio of means): pairs of a row with itself inflate R^2."""
    debiased: bool


def class_separation(
    z: Array, y: Array, debiased: bool = False, smallest_class: int = 2
) -> Separation:
    """Share of the mean cosine distance that lies between classes, all classes counting equally.

    Debiased leaves out the pairs of a row with itself, which small classes need.

    >>> import torch
    >>> one_hot = torch.eye(3).repeat(2, 1)
    >>> separation = class_separation(one_hot, torch.tensor([0, 1, 2, 0, 1, 2]))
    >>> separation.value, round(separation.null, 6)  # 1 - (1 - 1/2) / (1 - 1/6)
    (1.0, 0.4)
    """
    return _separations(z, y, max(smallest_class, 2 if debiased else 1), debiased)[0]


def plain_and_debiased_separation(z: Array, y: Array) -> tuple[Separation, Separation]:
    """Both, from the same class means.

    >>> import torch
    >>> z, y = torch.tensor([[1.0, 1.0], [1.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]]), [0, 0, 1, 1]
    >>> plain, debiased = plain_and_debiased_separation(z, torch.tensor(y))
    >>> debiased == class_separation(z, torch.tensor(y), debiased=True)
    True
    """
    plain, debiased = _separations(z, y, 2, False, True)
    return plain, debiased


def _separations(z: Array, y: Array, smallest_class: int, *debiased: bool) -> list[Separation]:
    rows = as_matrix(z)
    labels = as_labels(y, len(rows))
    unit, some = directions(rows)
    counts = labels[some].bincount(minlength=int(labels.max()) + 1)
    large = some & (counts[labels] >= smallest_class)
    classes, dense = distinct(labels[large])
    nothing = unit[:0], unit.new_zeros(0)
    means = class_means(unit[large], dense, len(classes)) if len(classes) else nothing
    return [
        _separation(*means, way, int((~some).sum()), int((some & ~large).sum())) for way in debiased
    ]


def _separation(
    means: Tensor, counts: Tensor, debiased: bool, zero_rows: int, small_class_rows: int
) -> Separation:
    """From the means of unit vectors [K, d] and their numbers [K]."""
    value, within, total, null = _ratio(means, counts, debiased)
    return Separation(
        value=value,
        within=within,
        total=total,
        n=int(counts.sum()),
        classes=len(counts),
        zero_rows=zero_rows,
        small_class_rows=small_class_rows,
        null=null,
        debiased=debiased,
    )


def _ratio(means: Tensor, counts: Tensor, debiased: bool) -> tuple[float, float, float, float]:
    classes = len(counts)
    if classes < 2:
        return (float("nan"),) * 4
    own = means.square().sum(1)  # |mu_k|^2
    between = means.sum(0).square().sum() - own.sum()
    if debiased:
        own = (counts * own - 1) / (counts - 1)
    within = float(1 - own.mean())
    total = float(1 - (between + own.sum()) / classes**2)
    same = float((1 / counts).mean())  # share of pairs that are a row with itself
    null = 0.0 if debiased else 1 - (1 - same) / (1 - same / classes)
    value = 1 - within / total if total > ROUNDING else float("nan")
    return value, within, total, null
