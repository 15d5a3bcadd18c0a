"""What every partitioner draws with: seeded generators, exact apportioning, dealing by class."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.rng import seed_of
from fedloom.errors import BadInput, PartitionError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST, MOST_WHOLE = 1e15, 10_000_000
"""The largest arguments: beyond them sums overflow, and lists take all memory."""
TRIES = 2000
"""Redraws before a partitioner gives up."""


def rng(seed: int, *purpose: Hashable) -> np.random.Generator:
    """A numpy generator for one purpose; the same on every machine."""
    return np.random.default_rng(seed_of(int(seed), "data", *purpose))


def positive(**values: Any) -> None:
    """Refuse arguments that are not numbers above zero, or beyond any use, by name."""
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= MOST:
            raise BadInput(f"{name} must be a number above zero, not {value!r:.80}")


def whole(**values: Any) -> None:
    """Refuse arguments that are not whole numbers above zero, by name."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_WHOLE:
            raise BadInput(f"{name} must be a whole number above zero, not {value!r:.80}")


def wholes(**values: Any) -> None:
    """Refuse arguments that are not lists of whole numbers above zero, by name."""
    for name, value in values.items():
        if not isinstance(value, list | tuple) or not value:
            raise BadInput(f"{name} must be a list of whole numbers, not {value!r}")
        for one in value:
            whole(**{name: one})


def class_totals(labels: Ints, classes: int) -> Ints:
    """How many rows each class has, [K]."""
    return np.bincount(labels, minlength=classes).astype(np.int64)


def apportion(total: int, weights: Floats | Ints, gen: np.random.Generator) -> Ints:
    """Whole numbers that sum to `total` in proportion to `weights`; ties are broken at random.

    >>> apportion(10, np.array([1.0, 3.0, 1.0]), np.random.default_rng(0)).tolist()
    [2, 6, 2]
    """
    exact = np.asarray(weights, dtype=np.float64) * (total / np.sum(weights))
    counts: Ints = np.floor(exact + 1e-9).astype(np.int64)
    short = total - int(counts.sum())
    if short:
        shuffled = gen.permutation(len(exact))
        lost = np.round(exact - counts, 9)[shuffled]
        counts[shuffled[np.argsort(-lost, kind="stable")[:short]]] += 1
    return counts


def take(
    counts: Ints, labels: Ints, gen: np.random.Generator, *, sharing: bool = False
) -> list[Ints]:
    """Rows for each client: `counts[i, k]` rows of class k to client i, drawn at random. [N, K]

    No row goes to two clients. With `sharing`, a class that has run out is dealt again from its
    start, so clients may share rows; one client never holds a row twice.
    """
    _enough(counts, class_totals(labels, counts.shape[1]), sharing)
    dealt: list[list[Ints]] = [[] for _ in counts]
    for k in np.flatnonzero(counts.sum(axis=0)):
        queue = gen.permutation(np.flatnonzero(labels == k))
        ends = np.cumsum(counts[:, k])
        for i in np.flatnonzero(counts[:, k]):
            at = np.arange(ends[i] - counts[i, k], ends[i]) % len(queue)
            dealt[i].append(queue[at])
    return [np.sort(np.concatenate(rows)) if rows else empty() for rows in dealt]


def _enough(counts: Ints, totals: Ints, sharing: bool) -> None:
    needed = counts.max(axis=0) if sharing else counts.sum(axis=0)
    if (needed <= totals).all():
        return
    k = int(np.argmax(needed - totals))
    fits = int(counts.sum(axis=1).max() * np.min(totals / np.maximum(needed, 1)))
    otherwise = "" if sharing else ", or set sharing=true to let clients hold the same rows"
    raise PartitionError(
        f"class {k} has {totals[k]} rows but the clients need {needed[k]}; "
        f"ask for at most {fits} rows per client{otherwise}"
    )


def in_parts(rows: Ints, sizes: Ints) -> list[Ints]:
    """Consecutive parts of these sizes, as views.

    >>> [part.tolist() for part in in_parts(np.array([7, 3, 5]), np.array([2, 0, 1]))]
    [[7, 3], [], [5]]
    """
    ends = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    return [rows[a:b] for a, b in pairwise(ends)]


def sort_in_parts(rows: Ints, sizes: Ints) -> Ints:
    """Sort each of these consecutive parts, in place and all at once.

    >>> sort_in_parts(np.array([7, 3, 5, 1]), np.array([2, 2])).tolist()
    [3, 7, 1, 5]
    """
    apart = np.repeat(np.arange(len(sizes)) * (rows.max(initial=0) + 1), sizes)
    rows += apart
    rows.sort()
    rows -= apart
    return rows


def empty() -> Ints:
    """No rows."""
    return np.empty(0, dtype=np.int64)
