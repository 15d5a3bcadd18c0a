"""What stands in for the mean of the uploads: rules that a few hostile clients cannot bend.

`mean` is the plain, weighted one. The others keep the uploads of a round until all are there. They
are used for every slice that is averaged, each by itself. Slices whose uploads a part reads one by
one (FedPAC's heads, what FedFomo and APPLE hand on) never go through a mean, so no rule protects
them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.core.tree import Tree, WeightedSum, cast_back
from fedloom.errors import BadInput
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

aggregations = Registry("aggregation")
"""Rules by name."""


class Upload(NamedTuple):
    """One client's upload of one slice."""

    tree: Tree
    weight: float


class Accumulator(Protocol):
    """Takes the uploads of one slice in one round, one at a time."""

    def fold(self, tree: Mapping[str, Tensor], weight: float) -> None:
        """Add one upload with its weight."""

    def mean(self) -> Tree:
        """The mean over the cohort."""

    def sum(self) -> Tree:
        """The sum over the cohort."""


@dataclass(frozen=True)
class Aggregation:
    """A rule. One of these in an expression: `trimmed_mean(share=0.2)`."""

    name: ClassVar[str]

    def accumulator(self, reference: Tree) -> Accumulator:
        """For one slice in one round; `reference` is what the server has in it."""
        return WeightedSum()

    def __str__(self) -> str:
        return written(self, self.name)


@aggregations
@dataclass(frozen=True)
class Mean(Aggregation):
    """The weighted mean, as in the papers."""

    name: ClassVar[str] = "mean"


MEAN = Mean()


@dataclass(frozen=True)
class Robust(Aggregation):
    """A rule that looks at all uploads of a round together.

    Uploads of weight 0, and those with a number that is not finite, take no part. Sums (FedCR's
    experts, FedProto's and SphereFed's totals) are taken over the uploads that the rule accepts, as
    it accepts them; a rule that works number by number leaves them alone, because there a 0 only
    says that a client has nothing to add.
    """

    def accumulator(self, reference: Tree) -> Accumulator:
        return _Kept(self, reference)

    def accepted(self, uploads: Sequence[Upload], reference: Tree) -> Sequence[Upload]:
        """Those that count, changed where they must be; by default all."""
        return uploads

    def center(self, uploads: Sequence[Upload]) -> Tree:
        """One tree for all of them; by default the weighted mean."""
        return _folded(uploads).mean()


class _Kept:
    """The uploads of a round, until it is over."""

    def __init__(self, rule: Robust, reference: Tree) -> None:
        self._rule, self._reference = rule, reference
        self._uploads: list[Upload] = []

    def fold(self, tree: Mapping[str, Tensor], weight: float) -> None:
        # A slice may have no tensors: the model of a method that shares none of it.
        if weight > 0 and tree and all(value.isfinite().all() for value in tree.values()):
            self._uploads.append(Upload(dict(tree), weight))

    def mean(self) -> Tree:
        return self._rule.center(self._accepted()) if self._uploads else {}

    def sum(self) -> Tree:
        return _folded(self._accepted()).sum() if self._uploads else {}

    def _accepted(self) -> Sequence[Upload]:
        return self._rule.accepted(self._uploads, self._reference)


def _folded(uploads: Sequence[Upload]) -> WeightedSum:
    folded = WeightedSum()
    for tree, weight in uploads:
        folded.fold(tree, weight)
    return folded


# ------------------------------------------------------------------ number by number


@dataclass(frozen=True)
class _NumberByNumber(Robust):
    """Of each number, something in the middle of what the clients say; all count alike."""

    def center(self, uploads: Sequence[Upload]) -> Tree:
        first = uploads[0].tree
        return {
            key: cast_back(
                self.middle(torch.stack([u.tree[key].detach().double() for u in uploads])),
                value.dtype,
            )
            for key, value in first.items()
        }

    @abstractmethod
    def middle(self, values: Tensor) -> Tensor:
        """Of values [m, ...] of m clients, [...]."""


@aggregations
@dataclass(frozen=True)
class Median(_NumberByNumber):
    """Of each number the median over clients; of an even number of them, the middle of the two
    (Yin et al., ICML 2018)."""

    name: ClassVar[str] = "median"

    def middle(self, values: Tensor) -> Tensor:
        return _median(values)


@aggregations
@dataclass(frozen=True)
class TrimmedMean(_NumberByNumber):
    """Of each number the mean over clients without the largest and the smallest `share` of them
    (Yin et al., ICML 2018); it bears as large a share of hostile clients."""

    name: ClassVar[str] = "trimmed_mean"
    share: float = 0.2

    def __post_init__(self) -> None:
        _check_share(self.name, self.share)

    def middle(self, values: Tensor) -> Tensor:
        cut = floor(self.share * len(values))
        return values.sort(dim=0).values[cut : len(values) - cut].mean(0)


# ------------------------------------------------------------------ upload by upload


@aggregations
@dataclass(frozen=True)
class Krum(Robust):
    """The mean of the `keep` uploads that lie closest to their neighbours (Blanchard et al.,
    NeurIPS 2017; more than one is their Multi-Krum).

    The score of an upload is the sum of its squared distances to the m - f - 2 nearest others, with
    m uploads and f = share m hostile ones. `keep=0` keeps m - f. It takes 2 f + 2 < m.
    """

    name: ClassVar[str] = "krum"
    share: float = 0.2
    keep: int = 1

    def __post_init__(self) -> None:
        _check_share(self.name, self.share)
        if self.keep < 0:
            raise BadInput(
                f"krum: keep is a number of uploads, or 0 for all but the hostile share, not"
                f" {self.keep}"
            )

    def accepted(self, uploads: Sequence[Upload], reference: Tree) -> Sequence[Upload]:
        m, hostile = len(uploads), floor(self.share * len(uploads))
        if 2 * hostile + 2 >= m:
            raise BadInput(
                f"krum: {m} uploads of which {hostile} may be hostile are too few; it takes more"
                f" than {2 * hostile + 2} in every round"
            )
        distances = _squared_distances([_flat(u.tree) for u in uploads])
        nearest = distances.sort(dim=1).values[:, 1 : m - hostile - 1]  # without its own 0
        keep = min(self.keep or m - hostile, m)
        chosen = nearest.sum(1).argsort(stable=True)[:keep]
        return [uploads[i] for i in sorted(chosen.tolist())]


@aggregations
@dataclass(frozen=True)
class NormBound(Robust):
    """The weighted mean of uploads none of which is farther than `most` from the server's values;
    one that is gets brought nearer on its own line (Sun et al., 2019).

    `most=0` takes the median of the distances of the round. A slice that the server does not have
    in the same form is bounded by its distance from 0.
    """

    name: ClassVar[str] = "norm_bound"
    most: float = 0.0

    def __post_init__(self) -> None:
        if self.most < 0:
            raise BadInput(
                f"norm_bound: most is a distance above 0, or 0 for the round's median, not"
                f" {self.most}"
            )

    def accepted(self, uploads: Sequence[Upload], reference: Tree) -> Sequence[Upload]:
        start = _like(uploads[0].tree, reference)
        moves = [_flat(u.tree) - start for u in uploads]
        norms = torch.stack([move.norm() for move in moves])
        most = self.most or float(_median(norms))
        return [
            u if norm <= most else Upload(_shaped(start + move * (most / norm), u.tree), u.weight)
            for u, move, norm in zip(uploads, moves, norms.tolist(), strict=True)
        ]


def parse_aggregation(text: str) -> Aggregation:
    """A rule from its expression.

    >>> parse_aggregation("trimmed_mean(share=0.1)")
    TrimmedMean(share=0.1)
    """
    rule: Aggregation = aggregations.build(parse_one(text))
    return rule


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 0.5:
        raise BadInput(f"{name}: share is a share of clients, 0 or more and below 0.5, not {share}")


def _flat(tree: Tree) -> Tensor:
    """All numbers of a tree in one row, in float64."""
    return torch.cat([value.detach().double().flatten() for value in tree.values()])


def _shaped(flat: Tensor, like: Tree) -> Tree:
    """The reverse of `_flat`."""
    parts = torch.split(flat, [value.numel() for value in like.values()])
    return {
        key: cast_back(part.reshape(value.shape), value.dtype)
        for (key, value), part in zip(like.items(), parts, strict=True)
    }


def _like(tree: Tree, reference: Tree) -> Tensor:
    """The reference's numbers in the places of the tree's; zeros where it has not all of them."""
    same = all(key in reference and reference[key].shape == v.shape for key, v in tree.items())
    return _flat({key: reference[key] for key in tree}) if same else torch.zeros_like(_flat(tree))


def _squared_distances(rows: Sequence[Tensor]) -> Tensor:
    """Between every two rows, [m, m]; not by a Gram matrix, which would cancel digits."""
    return torch.stack([torch.stack([(a - b).square().sum() for b in rows]) for a in rows])


def _median(values: Tensor) -> Tensor:
    """Over the first dimension; of an even number, the middle of the two. (torch's own takes the
    lower one, and its quantiles refuse large tensors.)"""
    ordered, m = values.sort(dim=0).values, len(values)
    return (ordered[(m - 1) // 2] + ordered[m // 2]) / 2
