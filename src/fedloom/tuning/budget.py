"""How many trials fit into a time."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedloom.durations import duration
from fedloom.errors import BadInput
from fedloom.tuning.halving import total_rounds

MOST_TRIALS = 256
"""More points than these in a few dimensions teach little."""
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(budget: str | float) -> float:
    """A time in seconds: a number of them, or text with units.

    >>> seconds_of("1h30m"), seconds_of("90s"), seconds_of(20)
    (5400.0, 90.0, 20.0)
    """
    if isinstance(budget, int | float) and not isinstance(budget, bool):
        seconds = float(budget)
    else:
        text = str(budget).replace(" ", "")
        if not re.fullmatch(r"(\d+(\.\d+)?[hms])+", text):
            raise BadInput(f"budget = {budget!r} is no time; write for instance 30m or 1h30m")
        parts = re.findall(r"([\d.]+)([hms])", text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise BadInput(f"budget = {budget!r} is no time above 0; write for instance 30m")
    return seconds


def trials_within(
    budget: float,
    seconds_per_round: Sequence[float],
    rounds: int,
    workers: int,
    further: float = 0,
    confirm: int = 0,
) -> int:
    """The largest number of trials of every method whose rounds fit, side by side; `further` are
    rounds of each method that come after the tuning, `confirm` seeds belong to it.

    >>> trials_within(60, [0.1], rounds=50, workers=2)
    84
    """

    def needed(trials: int) -> float:
        return sum(seconds_per_round) * (total_rounds(trials, rounds, confirm) + further) / workers

    fitting = [n for n in range(1, MOST_TRIALS + 1) if needed(n) <= budget]
    if not fitting or fitting[-1] < 2:
        raise BadInput(
            f"a budget of {duration(budget)} is too short: two trials of each method take about"
            f" {duration(needed(2))}; give more time, or fewer rounds or methods"
        )
    return fitting[-1]
