"""Every registered method, recipe and term as a case of the contract, and what some of them need.

A new file in `fedloom/methods` is a new case by being there. A line in `NEEDS` is wanted only
where a method cannot run on a small MLP, or takes its time to learn.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fedloom.methods import register
from fedloom.testing import MethodCase

NEEDS: dict[str, dict[str, Any]] = {
    "fedbn": {"model": "mlp(hidden=[16], norm=batch)"},
    # The running statistics of its projector need a dozen visits to follow a body that moves.
    "dualfed": {"rounds_to_learn": 15},
    # Delta begins at zero, so the first round takes steps of alpha = 0.1 of their length.
    "fedcm": {"rounds_to_learn": 10},
    "client_momentum": {"rounds_to_learn": 10},
    # A server step of 0.01 is small, and its momentum has to gather first.
    "pfedhn": {"rounds_to_learn": 10},
}
ALL = list(register)


@cache
def case(name: str) -> MethodCase:
    """One for all checks, so that the plain run they compare with is run once."""
    return MethodCase.of(name, **NEEDS.get(name, {}))
