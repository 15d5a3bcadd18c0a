"""The points that are tried: Optuna's quasi-random sampler, seeded, all of them drawn up front.

So they depend on neither the number of processes nor on who is quicker, and a tuning that goes on
after a stop draws the same ones again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fedloom.core.tunable import Choice, Integer, Linear, Log, Range
from fedloom.errors import needs_extra

with needs_extra("tune"):
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

DIGITS = 3
"""Significant digits of a drawn number: an expression stays readable, and reads back the same."""


def points(ranges: Mapping[str, Range], count: int, seed: int) -> list[dict[str, Any]]:
    """So many points, spread evenly over the ranges."""
    with warnings.catch_warnings():
        # Calls itself experimental since 2022; points that changed would be refused on resuming.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(scramble=True, seed=seed % 2**32)
    study = optuna.create_study(sampler=sampler)
    space = distributions(ranges)
    return [rounded(study.ask(space).params) for _ in range(count)]


def distributions(ranges: Mapping[str, Range]) -> dict[str, BaseDistribution]:
    """The ranges in Optuna's words."""
    return {name: _distribution(where) for name, where in ranges.items()}


def _distribution(where: Range) -> BaseDistribution:
    match where:
        case Log(low, high):
            return FloatDistribution(low, high, log=True)
        case Linear(low, high):
            return FloatDistribution(low, high)
        case Integer(low, high):
            return IntDistribution(low, high)
        case Choice(values):
            return CategoricalDistribution(values)


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats to a few digits; the ends of a range, which have no more, are never passed."""
    return {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
