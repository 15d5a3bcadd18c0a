"""How little an extractor tells two disjoint sets of inputs apart (FedBR Prop. 3.1, Figure 2).

Use test samples of both sets, in equal number: memorised training features look separated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct, paired, same_width
from fedloom.analysis.fisher_ratio import moments_of_classes
from fedloom.analysis.geometry import ROUNDING, centred, gram_matrix, squared_distances
from fedloom.analysis.neighbours import NEIGHBOURS, neighbour_shares
from fedloom.core.rng import generator
from fedloom.errors import BadInput
from fedloom.ops.prototypes import class_means

FOLDS = 5
CORRECTIONS, PRECISION = 8, 1e-12
"""Of a system that is factorised in single precision: at most so many, until so little is left."""


@dataclass(frozen=True)
class Overlap:
    """Five views of one question: eta2 sees means, auc linear, neighbours any separation."""

    eta2: float
    """Sum of squares between the sets over the total; NaN for constant features."""
    null_eta2: float
    """Its mean when rows are dealt out at random: 1/(N - 1)."""
    auc: float
    """Of a linear discriminator on held-out folds, .5 = not told apart; NaN below five a set."""
    auc_noise: float
    """Standard deviation of the auc of indistinguishable sets."""
    a_distance: float
    """2 (1 - 2 err) of that discriminator, err the mean of both sets' error shares."""
    cross_neighbours: float
    """Share of the second set's neighbours that lie in the first, over what mixing gives: 1."""
    energy: float
    """Energy distance over the mean distance of all pairs; 0 in the mean for one law."""
    n: tuple[int, int]
    k: int


@dataclass(frozen=True)
class Collapse:
    """Overlap under a local and a reference extractor."""

    rho: float
    """Ratio of eta2; below 1 the local extractor tells the sets apart less."""
    local: Overlap
    reference: Overlap


@dataclass(frozen=True)
class CentroidRatio:
    """Class centroids' mean distance over the spread inside classes, local over reference."""

    value: float
    local: float
    reference: float
    classes: int
    n: int


def set_overlap(first: Array, second: Array, k: int = NEIGHBOURS, seed: int = 0) -> Overlap:
    """Overlap of one extractor's features of two disjoint sets of inputs.

    >>> overlap = set_overlap(torch.tensor([0.0, 2.0]), torch.tensor([6.0, 8.0]), k=1)
    >>> overlap.eta2, round(overlap.null_eta2, 4), overlap.cross_neighbours  # 36 / 40
    (0.9, 0.3333, 0.0)
    """
    one, two = as_matrix(first), as_matrix(second)
    return overlap_of(one, two, linear_discrimination(one, two, seed), k)


def linear_discrimination(first: Array, second: Array, seed: int = 0) -> tuple[float, float]:
    """AUC and balanced error of a ridge discriminator, means over stratified held-out folds; NaN
    below five rows a set.

    >>> apart = torch.arange(10.0)
    >>> linear_discrimination(apart, 100 - apart)
    (1.0, 0.0)
    """
    one, two = as_matrix(first), as_matrix(second)
    same_width(one, two)
    rows = torch.cat([one, two])
    return _linear_discrimination(rows, _members(len(one), len(two)), seed)


def overlap_of(
    one: Tensor, two: Tensor, discrimination: tuple[float, float], k: int = NEIGHBOURS
) -> Overlap:
    """From features in any coordinates that keep distances, as `geometry.in_few_columns` does, and
    from a discrimination, whose scale is that of the columns."""
    if k < 1:
        raise BadInput(f"k is {k}; an overlap needs at least one neighbour")
    n, m = len(one), len(two)
    total = n + m
    rows, member = torch.cat([one, two]), _members(n, m)
    squared = squared_distances(rows)
    shares = neighbour_shares(squared, member, 2, min(k, total - 1))
    auc, error = discrimination
    return Overlap(
        eta2=_eta2(rows, member),
        null_eta2=1 / (total - 1),
        auc=auc,
        auc_noise=((total + 1) / (12 * n * m)) ** 0.5,
        a_distance=2 * (1 - 2 * error),
        cross_neighbours=float(shares[n:, 0].mean()) * (total - 1) / n,
        energy=_energy(squared.sqrt(), n),
        n=(n, m),
        k=min(k, total - 1),
    )


def feature_collapse(
    local: tuple[Array, Array], reference: tuple[Array, Array], k: int = NEIGHBOURS, seed: int = 0
) -> Collapse:
    """Whether a local extractor maps two disjoint sets closer together than the reference does.

    >>> near, far = torch.tensor([4.0, 6.0]), torch.tensor([7.0, 9.0])
    >>> origin = torch.tensor([0.0, 2.0])
    >>> round(feature_collapse((origin, near), (origin, far), k=1).rho, 4)  # 16/20 over 49/53
    0.8653
    """
    return collapse_of(set_overlap(*local, k, seed), set_overlap(*reference, k, seed))


def collapse_of(local: Overlap, reference: Overlap) -> Collapse:
    """From both overlaps."""
    rho = local.eta2 / reference.eta2 if reference.eta2 > ROUNDING else float("nan")
    return Collapse(rho, local, reference)


def centroid_ratio(local: Array, reference: Array, labels: Array) -> CentroidRatio:
    """The class-level version, on the features of classes that the client has never seen.

    Classes of fewer than two rows are left out; NaN with fewer than two classes or no spread.

    >>> reference = torch.tensor([-1.0, 1, 9, 11])
    >>> centroid_ratio(reference / 4, reference, torch.tensor([5, 5, 6, 6])).value
    1.0
    >>> local = torch.tensor([-1.0, 1, 4, 6])
    >>> centroid_ratio(local, reference, torch.tensor([5, 5, 6, 6])).value
    0.5
    """
    mine, theirs = paired(local, reference)
    known = as_labels(labels, len(mine))
    enough = known.bincount()[known] >= 2
    classes, dense = distinct(known[enough])
    if len(classes) < 2:
        return CentroidRatio(*(float("nan"),) * 3, len(classes), int(enough.sum()))
    own, other = (_centroid_distance(z[enough], dense, len(classes)) for z in (mine, theirs))
    value = own / other if other else float("nan")
    return CentroidRatio(value, own, other, len(classes), int(enough.sum()))


def _members(n: int, m: int) -> Tensor:
    """Which set each row is of, the first n of one and then m of the other."""
    return (torch.arange(n + m) >= n).long()


def _eta2(rows: Tensor, member: Tensor) -> float:
    moved = centred(rows)
    means, counts = class_means(moved, member, 2)
    total = moved.square().sum()
    return float((counts[:, None] * means.square()).sum() / total) if total else float("nan")


def _energy(distances: Tensor, n: int) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'| over different rows, divided by the mean distance."""
    total = len(distances)
    m = total - n
    whole = distances.sum() / (total * (total - 1))
    if min(n, m) < 2 or not whole:
        return float("nan")
    inside = distances[:n, :n].sum() / (n * (n - 1)) + distances[n:, n:].sum() / (m * (m - 1))
    return float((2 * distances[:n, n:].mean() - inside) / whole)


def _linear_discrimination(rows: Tensor, member: Tensor, seed: int) -> tuple[float, float]:
    if member.bincount().min() < FOLDS:
        return float("nan"), float("nan")
    fold = torch.empty(len(member), dtype=torch.long)
    shuffle = generator(seed, "folds of an overlap")
    for group in range(2):
        own = (member == group).nonzero().flatten()
        fold[own[torch.randperm(len(own), generator=shuffle)]] = torch.arange(len(own)) % FOLDS
    areas, errors = [], []
    for held, (middle, spread) in enumerate(_outside_folds(rows, fold)):
        train, test = (fold != held).nonzero().flatten(), (fold == held).nonzero().flatten()
        x = rows[torch.cat([train, test])].sub_(middle).div_(spread * rows.shape[1] ** 0.5)
        scores = _ridge_scores(x[: len(train)], member[train], x[len(train) :])
        truth = member[test]
        areas.append(_auc(scores[truth == 1], scores[truth == 0]))
        wrong = torch.where(scores == 0, 0.5, ((scores > 0) != (truth == 1)).double())
        errors.append(float((wrong[truth == 0].mean() + wrong[truth == 1].mean()) / 2))
    return sum(areas) / FOLDS, sum(errors) / FOLDS


def _outside_folds(rows: Tensor, fold: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Mean and deviation of the columns over the rows outside of each fold, from one pass over all;
    the deviation of what is constant there is infinite."""
    by_fold = moments_of_classes(rows, fold, FOLDS)
    for held in range(FOLDS):
        others = reduce(add, (own for place, own in by_fold.items() if place != held))
        spread = others.variance.sqrt()
        constant = spread <= ROUNDING * others.mean.abs()
        yield others.mean, spread.masked_fill_(constant, torch.inf)


def _auc(higher: Tensor, lower: Tensor) -> float:
    """Share of pairs in the right order; a tie counts half."""
    apart = (higher[:, None] - lower).sign()
    return float((apart.mean() + 1) / 2)


def _ridge_scores(x: Tensor, member: Tensor, held: Tensor) -> Tensor:
    """Scores of held-out rows: ridge regression on targets that give both sets equal weight.

    Columns come standardised and divided by sqrt(d), the penalty is 1; the offset puts zero halfway
    between the training sets' mean scores. Solved in n or d dimensions, whichever is fewer.
    """
    count = member.bincount().double()
    target = torch.where(member == 1, 1 / count[1], -1 / count[0]) * len(x) / 2
    if x.shape[1] <= len(x):
        weight = _solved(_factor(x.T @ x), x.T @ target)
    else:
        weight = x.T @ _shares_of_rows(x, target)
    fitted = x @ weight
    offset = (fitted[member == 0].mean() + fitted[member == 1].mean()) / 2
    scores: Tensor = held @ weight - offset
    return scores


def _shares_of_rows(x: Tensor, target: Tensor) -> Tensor:
    """(xx' + 1)^-1 t for wide rows. A factor of single precision takes half the time. No eigenvalue
    lies below 1, so that every correction by what is left, which is computed in double precision,
    takes four digits or more off the error."""
    lower = _factor(gram_matrix(x.float()).double())
    shares = _solved(lower, target)
    for _ in range(CORRECTIONS):
        left = target - shares - x @ (shares @ x)
        if left.norm() <= PRECISION * target.norm():
            break
        shares += _solved(lower, left)
    return shares


def _factor(gram: Tensor) -> Tensor:
    """Cholesky's, of G + 1."""
    lower: Tensor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    return lower


def _solved(lower: Tensor, target: Tensor) -> Tensor:
    solution: Tensor = torch.cholesky_solve(target[:, None], lower)
    return solution[:, 0]


def _centroid_distance(z: Tensor, labels: Tensor, classes: int) -> float:
    """Mean distance of class centroids over the root mean square distance to the own centroid."""
    means, _ = class_means(z, labels, classes)
    inside = (z - means[labels]).square().sum(1).mean().sqrt()
    if inside <= ROUNDING * z.abs().max():
        return float("nan")
    first, second = torch.triu_indices(classes, classes, 1)
    apart = torch.linalg.vector_norm(means[first] - means[second], dim=1).mean()
    return float(apart / inside)
