"""How well the papers' tables are reproduced: numbers inside, and the order of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import kendalltau

from fedloom.reproduce.comparison import Line

SHARE, TAU = 0.8, 0.7
"""What is aimed at: numbers inside, and Kendall's tau of the order of rows."""
FEWEST = 3
"""Rows that have an order."""


@dataclass(frozen=True)
class Count:
    """Numbers of runs that went to the end."""

    whole: int
    inside: int

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Count:
        """Those with a verdict."""
        verdicts = [line.inside for line in lines if line.inside is not None]
        return cls(len(verdicts), sum(verdicts))

    @property
    def share(self) -> float | None:
        """Inside; None of nothing."""
        return self.inside / self.whole if self.whole else None


@dataclass(frozen=True)
class Order:
    """How far rows of a column stand in the paper's order."""

    column: str
    quantity: str
    rows: int
    tau: float


def orders(lines: Sequence[Line]) -> list[Order]:
    """Kendall's tau of every column and quantity of a table of which enough rows went to the
    end."""
    by_place: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.inside is not None and line.difference is not None:
            by_place.setdefault((line.column, line.quantity), []).append(line)
    return [
        Order(column, quantity, len(of_rows), tau)
        for (column, quantity), of_rows in by_place.items()
        if len(of_rows) >= FEWEST and not math.isnan(tau := _tau(of_rows))
    ]


def _tau(lines: Sequence[Line]) -> float:
    paper = [line.printed.value for line in lines if line.printed is not None]
    ours = [line.ours.mean for line in lines if line.ours is not None]
    return float(kendalltau(paper, ours).statistic)
