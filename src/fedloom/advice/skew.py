"""How unlike clients are, in one number each and in words: their targets, and their features.

Small clients differ by chance alone, so every number is set against the same number of rows that
are dealt to clients at random, and what chance explains is taken off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedloom.data import FederatedData
from fedloom.data.partition.draw import Floats, Ints, rng

MOST_ROWS = 20_000
"""Rows, drawn at random, that features are compared by."""
WIDTH = 64
"""Features beyond these are projected at random to so many, which keeps shares of variance."""
DEALS = 20
"""How often rows are dealt at random, to learn what chance does."""
BEYOND_CHANCE = 4.0
"""Standard deviations over random deals from which on clients are called unlike."""
_BINS = 4  # of numbers, in the place of classes
_CHUNK = 2048  # rows read at a time from a memory map


@dataclass(frozen=True)
class Skew:
    """How unlike clients are in one respect."""

    value: float
    """0: as if rows were dealt at random; 1: as unlike as can be."""
    by_chance: float
    """What would be measured of rows dealt at random, before it is taken off."""
    deviations: float
    """How far beyond chance, in standard deviations over random deals."""
    words: str
    """none, mild, marked, strong or extreme."""

    @property
    def clear(self) -> bool:
        """Is it more than chance?"""
        return self.words != "none"


def label_skew(data: FederatedData, seed: int = 0) -> Skew:
    """Of classes: how much of a client's rows would have to change their class to have the others'
    proportions (the total variation distance), mean over clients. Of labels and numbers: which
    share of their variance is between clients."""
    rows, holders = _held(data)
    if data.targets == "classes":
        y = _called(data, rows, holders)
        return _against_chance(
            lambda who: _mean_distance(y, who, data.classes, len(data)),
            holders,
            np.zeros(len(holders), np.int64),
            (0.1, 0.3, 0.6),
            seed,
        )
    numbers = np.asarray(data.source.y, np.float64)[rows]
    return _against_chance(
        lambda who: _share_between(numbers, who),
        holders,
        np.zeros(len(holders), np.int64),
        (0.05, 0.2, 0.5),
        seed,
    )


def feature_skew(data: FederatedData, seed: int = 0) -> Skew:
    """Which share of the features' variance among rows of one class is between clients: different
    cameras, or different ideas of what belongs to a class. Numbers are taken in four bins for
    classes; rows with several labels as one class."""
    rows, holders = _held(data)
    if len(rows) > MOST_ROWS:
        drawn = np.sort(rng(seed, "feature skew").permutation(len(rows))[:MOST_ROWS])
        rows, holders = rows[drawn], holders[drawn]
    x = _features(data, rows, seed)
    classes = _classes(data, rows, holders)
    for k in np.unique(classes):
        x[classes == k] -= x[classes == k].mean(axis=0)
    return _against_chance(
        lambda who: _share_between(x, classes * len(data) + who),
        holders,
        classes,
        (0.05, 0.2, 0.5),
        seed,
    )


def _against_chance(
    measure: Callable[[Ints], float],
    holders: Ints,
    within: Ints,
    bounds: tuple[float, float, float],
    seed: int,
) -> Skew:
    """A measure of who holds each row, beside the same with rows dealt anew at random (among rows
    of equal `within`), `DEALS` times."""
    observed = measure(holders)
    gen = rng(seed, "random deals")
    order = np.argsort(within, kind="stable")
    deals = []
    for _ in range(DEALS):
        shuffled = np.empty_like(holders)
        mixed = np.lexsort((gen.random(len(order)), within))
        shuffled[order] = holders[mixed]
        deals.append(measure(shuffled))
    chance, spread = float(np.mean(deals)), float(np.std(deals))
    value = max(0.0, (observed - chance) / (1 - chance)) if chance < 1 else 0.0
    deviations = (observed - chance) / max(spread, 1e-9)
    if deviations < BEYOND_CHANCE:
        words = "none"
    else:
        words = ("mild", "marked", "strong", "extreme")[int(np.searchsorted(bounds, value))]
    return Skew(value, chance, deviations, words)


def _mean_distance(y: Ints, holders: Ints, classes: int, clients: int) -> float:
    table = np.zeros((clients, classes))
    np.add.at(table, (holders, y), 1)
    others = table.sum(axis=0) - table
    compared = (table.sum(axis=1) > 0) & (others.sum(axis=1) > 0)
    if not compared.any():
        return 0.0  # a single client is like everybody
    own, others = (
        counts[compared] / counts[compared].sum(axis=1, keepdims=True) for counts in (table, others)
    )
    return float(np.abs(own - others).sum(axis=1).mean() / 2)


def _share_between(values: Floats, cells: Ints) -> float:
    """The share of the variance that the means of the cells explain."""
    _, which, sizes = np.unique(cells, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    means = np.add.reduceat(values[order], starts, axis=0) / sizes[:, None]
    overall = values.mean(axis=0)
    between = (sizes[:, None] * (means - overall) ** 2).sum()
    total = ((values - overall) ** 2).sum()
    return float(between / total) if total > 0 else 0.0


def _held(data: FederatedData) -> tuple[Ints, Ints]:
    """The training rows of all clients, and who holds each."""
    packed = data.partition.packed
    return packed.split("train"), np.repeat(np.arange(len(packed)), packed.sizes[:, 0])


def _called(data: FederatedData, rows: Ints, holders: Ints) -> Ints:
    """The classes of rows as their clients call them."""
    y: Ints = np.asarray(data.source.y)[rows]
    maps = data.partition.label_maps
    return y if maps is None else np.asarray(maps[holders, y], np.int64)


def _classes(data: FederatedData, rows: Ints, holders: Ints) -> Ints:
    """Of rows without classes: bins of their first number, or all the same."""
    if data.targets == "classes":
        return _called(data, rows, holders)
    if data.targets == "labels":
        return np.zeros(len(rows), np.int64)
    numbers = np.asarray(data.source.y, np.float64)[rows, 0]
    edges = np.quantile(numbers, np.arange(1, _BINS) / _BINS)
    bins: Ints = np.searchsorted(edges, numbers).astype(np.int64)
    return bins


def _features(data: FederatedData, rows: Ints, seed: int) -> Floats:
    """Rows as a table of at most `WIDTH` standardised columns; text as counts of its words."""
    source = data.source
    if source.kind == "text":
        bucket = rng(seed, "words").integers(0, WIDTH, source.vocabulary)
        counts = np.zeros((len(rows), WIDTH))
        for i, row in enumerate(rows):
            words = source.x[row]
            np.add.at(counts[i], bucket[words[words > 0]], 1)
        return _standardised(counts)
    width = int(np.prod(source.shape))
    mixing = None
    if width > WIDTH:
        mixing = rng(seed, "projection").standard_normal((width, WIDTH)).astype(np.float32)
    parts = []
    for start in range(0, len(rows), _CHUNK):
        block = np.asarray(source.x[rows[start : start + _CHUNK]], np.float32)
        flat = block.reshape(len(block), width)
        parts.append(flat if mixing is None else flat @ mixing)
    return _standardised(np.concatenate(parts).astype(np.float64))


def _standardised(x: Floats) -> Floats:
    """Every column with mean 0 and deviation 1; one that is constant only centred."""
    deviation = x.std(axis=0)
    result: Floats = (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return result
