"""Rows of the table in the terminal: one number of a diagnostic, before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedloom.diagnose.per_client import Side


@dataclass(frozen=True)
class Row:
    """A number before and after local training, and what to hold it against."""

    label: str
    layer: str | None
    data: str
    numbers: Mapping[Side, float] = field(default_factory=dict)
    reference: str = ""
    """What no effect would give; of a diagnostic that was skipped, the reason."""


def short(value: float) -> str:
    """A number in few characters.

    >>> short(0.12345), short(33219.3), short(math.nan)
    ('0.123', '33219', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
