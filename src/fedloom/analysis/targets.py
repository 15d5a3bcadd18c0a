"""How high a run came and how soon: best rounds, worst client, rounds to a target, speed-up.

A curve has one number for every scored round: the value of the records' `headline`, or
`worst_client`. `rounds` are the records' `round`, needed where not every round was scored. A run's
own result (last, best on validation, each client's own best round) is chosen by its protocol and
stored in the run's summary; it is not computed again here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, stats

from fedloom.analysis.tables import Numbers, same_length, table, vector
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Best:
    """The mean of a curve's highest rounds, and what to read beside it."""

    mean: float
    rounds: tuple[int, ...]
    """Which rounds those are, highest first."""
    scored: int
    """Among so many."""
    by_chance: float
    """How far a flat curve would come above its level, in standard deviations of its noise."""
    last: float
    """Mean of the last ten scored rounds, which no choice can raise."""


def best_rounds(curve: ArrayLike, count: int = 5, *, rounds: ArrayLike | None = None) -> Best:
    """Mean of the `count` largest values, wherever they are (FedBR: five).

    The same number as the protocol's `mean_of_five_best_test`. It is chosen on the rows it is
    measured on, so compare only runs with equally many scored rounds.

    >>> best = best_rounds([0.25, 0.75, 0.5], count=2)
    >>> best.mean, best.rounds, best.last
    (0.625, (2, 3), 0.5)
    """
    values, at = _curve(curve, rounds)
    if count < 1:
        raise BadInput(f"count must be 1 or more, not {count}")
    highest = np.argsort(-np.round(values, 12), kind="stable")[:count]  # of equals the earlier
    return Best(
        mean=float(values[highest].mean()),
        rounds=tuple(int(t) for t in at[highest]),
        scored=len(values),
        by_chance=height_by_chance(len(values), len(highest)),
        last=float(values[-10:].mean()),
    )


@cache
def height_by_chance(scored: int, count: int = 1) -> float:
    """Expected mean of the `count` largest of so many independent standard normal values.

    A value x is among them if fewer than `count` of the others exceed it.

    >>> round(height_by_chance(1000), 2), round(height_by_chance(1000, 5), 2)
    (3.24, 2.86)
    """
    if not 1 <= count <= scored:
        raise BadInput(f"the best {count} of {scored} cannot be taken; use 1 to {scored}")
    if count == scored:
        return 0.0

    def share(x: float) -> float:
        others = stats.binom.cdf(count - 1, scored - 1, stats.norm.sf(x))
        return float(x * stats.norm.pdf(x) * others)

    middle = float(stats.norm.isf(count / scored))  # where the integrand has its weight
    area, _ = integrate.quad(share, -10.0, 10.0, points=[middle], limit=200)
    return float(area) * scored / count


def worst_client(accuracy: ArrayLike) -> Numbers:
    """The lowest accuracy of every round; rows are rounds, columns clients, NaN was not scored.

    The lowest of many is low by chance too: `fairness.lowest_by_chance`.

    >>> worst_client([[0.5, 0.1], [0.6, 0.3]])
    array([0.1, 0.3])
    """
    cells = table(accuracy, "accuracy", gaps=True)
    if (empty := np.isnan(cells).all(axis=1)).any():
        raise BadInput(f"row {int(empty.argmax())} of accuracy has no scored client; leave it out")
    lowest: Numbers = np.nanmin(cells, axis=1)
    return lowest


def rounds_to_target(
    curve: ArrayLike, target: float, *, rounds: ArrayLike | None = None, window: int = 1
) -> int | None:
    """The first scored round at or above the target; None if there is none.

    `window`: the mean of so many scored rounds up to this one must reach it, because a noisy curve
    crosses early; 5 is a good choice, and then nothing is reached before the fifth.

    >>> rounds_to_target([0.3, 0.6, 0.5], 0.55), rounds_to_target([0.3, 0.6, 0.5], 0.7)
    (2, None)
    """
    values, at = _curve(curve, rounds)
    if window < 1 or not math.isfinite(target):
        raise BadInput(f"window {window} must be 1 or more and the target {target} finite")
    if window > len(values):
        return None
    smooth = np.convolve(values, np.full(window, 1.0 / window), mode="valid")
    reached = smooth >= target - 1e-12  # a mean that equals the target but for rounding
    return int(at[window - 1 :][reached.argmax()]) if reached.any() else None


def median_rounds(rounds: Sequence[float | None]) -> float | None:
    """Median over seeds, where None is later than every round; None if the median is.

    A mean would need a number for "never", and whatever is put there decides it.

    >>> median_rounds([40, None, 60]), median_rounds([40, None, None])
    (60, None)
    """
    if not rounds:
        raise BadInput("the median needs the rounds of at least one seed")
    middle = median(math.inf if t is None else t for t in rounds)
    return None if math.isinf(middle) else middle


def speed_up(base: float | None, other: float | None) -> float | None:
    """Rounds of the base over rounds of the other; None where one never got there.

    >>> round(speed_up(828, 628), 1)
    1.3
    """
    return None if base is None or other is None else base / other


def _curve(curve: ArrayLike, rounds: ArrayLike | None) -> tuple[Numbers, Numbers]:
    values = vector(curve, "the curve")
    at = np.arange(1.0, len(values) + 1) if rounds is None else vector(rounds, "rounds")
    same_length(curve=values, rounds=at)
    if (np.diff(at) <= 0).any():
        raise BadInput(f"rounds must rise, not {at.tolist()}")
    return values, at
