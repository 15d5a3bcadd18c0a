"""Lines of `diagnostics.jsonl` as numbers for charts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from fedloom.drawing.figures import rounded
from fedloom.runs.scores import Record

SIDES = ("before", "after")


def newest(lines: list[Record]) -> list[Record]:
    """The lines of the last round that has any."""
    last = max(line["round"] for line in lines)
    return [line for line in lines if line["round"] == last]


def bars(lines: list[Record], metric: str) -> list[dict[str, Any]]:
    """Means over clients before and after, with the lowest and the highest client."""
    return [
        {
            "key": side,
            "values": [rounded(line["result"]["mean"][side][metric], 4) for line in lines],
            "low": [_end(min, line["result"][side][metric]) for line in lines],
            "high": [_end(max, line["result"][side][metric]) for line in lines],
        }
        for side in SIDES
    ]


def _end(which: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    there = [v for v in values if v is not None]
    return rounded(which(there), 4) if there else None


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """None if nothing is known.

    >>> mean_of_known([1.0, None, 2.0]), mean_of_known([None])
    (1.5, None)
    """
    there = [v for v in values if v is not None]
    return fmean(there) if there else None


def count_range(counts: Sequence[int]) -> str:
    """How many rows clients have.

    >>> count_range([20, 20]), count_range([31, 20])
    ('20', '20 to 31')
    """
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"
