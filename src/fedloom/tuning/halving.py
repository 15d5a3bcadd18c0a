"""Synchronous successive halving: all trials run to the first rung, the best third to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping

SHARE = 3
"""One in so many goes on, with so many times the rounds."""
MOST_RUNGS = 3
"""The first is then a ninth of the rounds; what comes out earlier says little of the end."""


def rungs(trials: int, rounds: int) -> list[int]:
    """Rounds at which trials are compared; the last is the whole run.

    >>> rungs(16, 50), rungs(4, 50), rungs(1, 50)
    ([6, 17, 50], [17, 50], [50])
    """
    steps = 1
    while steps < MOST_RUNGS and trials >= SHARE**steps:
        steps += 1
    return sorted({math.ceil(rounds / SHARE**step) for step in range(steps)})


def survivors(scores: Mapping[int, float | None], sign: int = 1) -> list[int]:
    """Which trials go on: the best third, the first of equals, and always trial 0, the defaults,
    as the measure of what tuning gains. A trial without a score broke down and ends. `sign` is -1
    where lower scores are better.

    >>> survivors({0: 0.1, 1: 0.9, 2: None, 3: 0.5, 4: 0.9})
    [0, 1, 4]
    """
    alive = {number: score for number, score in scores.items() if score is not None}
    best = sorted(alive, key=lambda number: (-sign * alive[number], number))
    return sorted({*best[: math.ceil(len(scores) / SHARE)], *({0} & alive.keys())})


def total_rounds(trials: int, rounds: int, confirm: int = 0) -> int:
    """Rounds that all trials train together, if none breaks down and the defaults never win; those
    that come to the end train with `confirm` further seeds.

    >>> total_rounds(1, 50), total_rounds(4, 50), total_rounds(4, 50, confirm=2)
    (50, 167, 467)
    """
    total, alive, before = 0, trials, 0
    for rung in rungs(trials, rounds):
        if before:
            alive = min(alive, math.ceil(alive / SHARE) + 1)
        total += alive * (rung - before)
        before = rung
    return total + (alive * confirm * rounds if alive > 1 else 0)
