"""Fisher's discriminant ratio between a client's features and everybody's (DBE App. B).

f_k = (mean_a,k - mean_b,k)^2 / (var_a,k + var_b,k) with population variances; F1 = max_k f_k. Both
sets must come from the same extractor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import nan
from operator import add
from statistics import fmean

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct, same_width
from fedloom.analysis.geometry import ROUNDING, centred, gram_matrix
from fedloom.errors import BadInput


@dataclass(frozen=True, eq=False)
class Moments:
    """What a client has to keep of its features: addition gives the moments of the union.

    >>> both = Moments.of(torch.tensor([0.0, 2.0])) + Moments.of(torch.tensor([3.0, 5.0]))
    >>> both.n, float(both.mean), float(both.variance)  # of 0, 2, 3, 5
    (4, 2.5, 3.25)
    """

    n: int
    mean: Tensor
    """[d]."""
    scatter: Tensor
    """[d], sum of squares about the mean."""

    @classmethod
    def of(cls, x: Array) -> Moments:
        """Of the rows of one matrix."""
        rows = as_matrix(x)
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).square_().sum(0))

    @property
    def variance(self) -> Tensor:
        """Population variance [d]."""
        return self.scatter / self.n

    def __add__(self, other: Moments) -> Moments:
        n, apart = self.n + other.n, other.mean - self.mean
        return Moments(
            n,
            self.mean + apart * (other.n / n),
            self.scatter + other.scatter + apart.square() * (self.n * other.n / n),
        )


@dataclass(frozen=True, eq=False)
class Fisher:
    """The ratios of all dimensions and their summaries."""

    ratios: Tensor
    """[d]; where neither set varies, 0 if the means agree and otherwise infinite."""
    largest: float
    """F1."""
    mean: float
    percentile90: float
    """The smallest ratio that nine tenths of the dimensions do not exceed."""
    dead: int
    """Dimensions in which neither set varies."""
    difference: Tensor
    """[d] of the means, first less second."""
    variances: tuple[Tensor, Tensor]
    """DBE's proof takes them to be the same with and without its term."""
    n: tuple[int, int]
    null_mean: float
    """Mean ratio of two samples of one law: (1/n_a + 1/n_b) / 2, and (1/n_a - 1/n_b) / 2 where
    the second set holds the first."""
    null_largest: float
    """Mean F1 of two samples of one law with independent dimensions."""


@dataclass(frozen=True, eq=False)
class ClassFisher:
    """Ratios averaged over the classes that both sets hold, so that the label mix plays no part."""

    ratios: Tensor
    """[d]."""
    largest: float
    mean: float
    classes: Tensor
    """[C], which classes have two rows or more on both sides."""
    null_mean: float


@dataclass(frozen=True)
class Discriminant:
    """d' S^-1 d of the mean difference d, which sees all dimensions together."""

    value: float
    shrinkage: float
    n: tuple[int, int]
    null: float
    """Of two samples of one law, for n well above d."""


def fisher(a: Array | Moments, b: Array | Moments) -> Fisher:
    """Ratios of two sets of features of one extractor.

    >>> ratio = fisher(torch.tensor([[0.0, 1], [2, 1]]), torch.tensor([[3.0, 1], [5, 1]]))
    >>> ratio.ratios, ratio.dead  # 9 / (1 + 1)
    (tensor([4.5000, 0.0000], dtype=torch.float64), 1)
    """
    first, second = (x if isinstance(x, Moments) else Moments.of(x) for x in (a, b))
    return _fisher(first, second, _noise(first, second))


def fisher_to_global(
    clients: Sequence[Array | Moments], leave_one_out: bool = False
) -> list[Fisher]:
    """Each client against all clients' features together (DBE), or against all others'.

    A client inside the global set shortens its own mean difference by 1 - n_i/n.

    >>> three = [torch.tensor([[0.0], [2.0]]) + shift for shift in (0, 0, 3)]
    >>> [round(one.largest, 3) for one in fisher_to_global(three)]
    [0.25, 0.25, 1.0]
    >>> [round(one.largest, 3) for one in fisher_to_global(three, leave_one_out=True)]
    [0.529, 0.529, 4.5]
    """
    if len(clients) < 2:
        raise BadInput("a client is compared with others; give the features of two or more")
    moments = [x if isinstance(x, Moments) else Moments.of(x) for x in clients]
    same_width(*(one.mean[None] for one in moments))
    if not leave_one_out:
        everybody = reduce(add, moments)
        return [_fisher(own, everybody, (1 / own.n - 1 / everybody.n) / 2) for own in moments]
    others = [moments[:i] + moments[i + 1 :] for i in range(len(moments))]
    return [fisher(own, reduce(add, rest)) for own, rest in zip(moments, others, strict=True)]


def fisher_within_classes(a: Array, y_a: Array, b: Array, y_b: Array, classes: int) -> ClassFisher:
    """Mean of the ratios class by class; NaN where no class has two rows on both sides.

    >>> a, b = torch.tensor([0.0, 2, 50, 52]), torch.tensor([3.0, 5])
    >>> within = fisher_within_classes(a, torch.tensor([0, 0, 1, 1]), b, torch.tensor([0, 0]), 3)
    >>> within.largest, within.classes.tolist()
    (4.5, [True, False, False])
    """
    return fisher_of_classes(
        moments_of_classes(a, y_a, classes), moments_of_classes(b, y_b, classes), classes
    )


def moments_of_classes(x: Array, y: Array, classes: int) -> dict[int, Moments]:
    """Of the rows of each class that occurs. Their sum is that of all rows, and takes no further
    look at them.

    >>> by_class = moments_of_classes(torch.tensor([0.0, 9.0, 2.0]), torch.tensor([0, 2, 0]), 3)
    >>> {c: (own.n, float(own.mean), float(own.variance)) for c, own in by_class.items()}
    {0: (2, 1.0, 1.0), 2: (1, 9.0, 0.0)}
    """
    rows = as_matrix(x)
    labels = as_labels(y, len(rows), classes)
    return {c: Moments.of(rows[labels == c]) for c in distinct(labels)[0].tolist()}


def fisher_of_classes(
    first: Mapping[int, Moments], second: Mapping[int, Moments], classes: int
) -> ClassFisher:
    """`fisher_within_classes` from `moments_of_classes`."""
    a, b = (next(iter(moments.values())).mean for moments in (first, second))
    same_width(a[None], b[None])
    both = sorted(first.keys() & second.keys())
    pairs = {c: (first[c], second[c]) for c in both if min(first[c].n, second[c].n) >= 2}
    shared = torch.zeros(classes, dtype=torch.bool)
    shared[list(pairs)] = True
    if not pairs:
        return ClassFisher(torch.full_like(a, nan), nan, nan, shared, nan)
    ratios = torch.stack([_ratios(*pair)[0] for pair in pairs.values()]).mean(0)
    noise = fmean(_noise(*pair) for pair in pairs.values())
    return ClassFisher(ratios, float(ratios.max()), float(ratios.mean()), shared, noise)


def discriminant(a: Array, b: Array, shrinkage: float = 0.1) -> Discriminant:
    """d' S^-1 d with S the sum of both covariances, shrunk towards its mean variance.

    In one dimension this is f. Dimensions in which nothing varies are left out.

    >>> a = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> round(discriminant(a, a + torch.tensor([3.0, 4.0])).value, 9)  # 25 / (1/2 + 1/2)
    25.0
    """
    if not 0 <= shrinkage <= 1:
        raise BadInput(f"shrinkage is {shrinkage}; it must lie in 0..1")
    first, second = as_matrix(a), as_matrix(b)
    same_width(first, second)
    n = len(first), len(second)
    moved = centred(first), centred(second)
    live = (moved[0].square().sum(0) + moved[1].square().sum(0)) > 0
    if min(n) < 2 or not live.any():
        return Discriminant(nan, shrinkage, n, nan)
    spreads = [gram_matrix(x[:, live].T) / len(x) for x in moved]
    total = spreads[0] + spreads[1]
    scale = total.diagonal().mean() * torch.eye(len(total), dtype=total.dtype)
    shrunk = (1 - shrinkage) * total + shrinkage * scale
    difference = (first.mean(0) - second.mean(0))[live]
    inverse = _inverse(shrunk, regular=shrinkage > 0)
    of_means = spreads[0] / (n[0] - 1) + spreads[1] / (n[1] - 1)
    return Discriminant(
        float(difference @ inverse @ difference), shrinkage, n, float((inverse * of_means).sum())
    )


def _fisher(first: Moments, second: Moments, noise: float) -> Fisher:
    same_width(first.mean[None], second.mean[None])
    ratios, dead = _ratios(first, second)
    live = len(ratios) - int(dead.sum())
    return Fisher(
        ratios=ratios,
        largest=float(ratios.max()),
        mean=float(ratios.mean()),
        percentile90=float(ratios.quantile(0.9, interpolation="higher")),
        dead=int(dead.sum()),
        difference=first.mean - second.mean,
        variances=(first.variance, second.variance),
        n=(first.n, second.n),
        null_mean=noise,
        null_largest=noise * _largest_chi_square(live),
    )


def _inverse(s: Tensor, regular: bool) -> Tensor:
    """Of a covariance; the pseudo-inverse of one that may be singular."""
    lower, failed = torch.linalg.cholesky_ex(s)
    if regular and not failed:
        return torch.cholesky_inverse(lower)
    inverse: Tensor = torch.linalg.pinv(s, hermitian=True)
    return inverse


def _noise(first: Moments, second: Moments) -> float:
    """Mean ratio of two separate samples of one law."""
    return (1 / first.n + 1 / second.n) / 2


def _ratios(first: Moments, second: Moments) -> tuple[Tensor, Tensor]:
    """f [d], and the dimensions in which neither set varies."""
    difference, spread = first.mean - second.mean, first.variance + second.variance
    smallest = ROUNDING * torch.maximum(first.mean.abs(), second.mean.abs())
    dead, equal = spread <= smallest.square(), difference.abs() <= smallest
    constant = torch.where(equal, 0.0, torch.inf).to(spread.dtype)
    return torch.where(dead, constant, difference.square() / torch.where(dead, 1.0, spread)), dead


def _largest_chi_square(count: int) -> float:
    """Mean of the largest of independent chi-square variables of one degree of freedom.

    The integral of 1 - P(Z^2 <= x)^count, with x = t^2; near 2 ln d - ln ln d - ln pi + 1.15.
    """
    if not count:
        return 0.0
    t = torch.linspace(0, 12, 4801, dtype=torch.float64)
    return float(torch.trapezoid(2 * t * (1 - torch.erf(t / math.sqrt(2)) ** count), t))
