"""Charts as data: the page's script draws them, a table behind each holds the same numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import MINUS, NONE, Cell, Column, html_table

MOST_POINTS = 500
MOST_TABLE_ROWS = 120


@dataclass
class Drawings:
    """The charts of a page, by the id of the element they are drawn in."""

    specs: dict[str, Any] = field(default_factory=dict)

    def figure(
        self,
        name: str,
        title: str,
        spec: dict[str, Any],
        table: Html | None = None,
        note: str = "",
    ) -> Html:
        """A chart with its caption, and its numbers in a table that can be opened."""
        self.specs[name] = {"title": title, **spec}
        chart = tag(
            "div",
            tag(
                "p", "The chart needs scripts; its numbers are in the table below.", class_="quiet"
            ),
            id=name,
            class_=f"chart {spec['kind']}",
        )
        caption = tag("figcaption", tag("strong", title), " " if note else None, note)
        return tag("figure", caption, chart, _data(name, table), class_=f"of-{spec['kind']}")


def _data(name: str, table: Html | None) -> Html | None:
    if table is None:
        return None
    return tag("details", tag("summary", "Data"), table, id=f"{name}-data", class_="data")


def plain_table(
    name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Html:
    """A table of values as they are; numbers are rounded for reading."""
    by_column = zip(*rows, strict=True) if rows else [()] * len(head)
    columns = [
        Column(h, numeric=all(map(_is_number, values)))
        for h, values in zip(head, by_column, strict=True)
    ]
    cells = [[Cell(_short(value), _sort_key(value)) for value in row] for row in rows]
    return html_table(name, caption, columns, cells, sortable=False)


def thinned(count: int, most: int) -> list[int]:
    """At most so many positions of `count`, evenly spread, first and last among them.

    >>> thinned(5, 3), thinned(2, 3)
    ([0, 2, 4], [0, 1])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number with few digits, for shorter JSON; None where it is not defined.

    >>> rounded(0.123456), rounded(math.nan), rounded(None)
    (0.1235, None, None)
    """
    return None if value is None or _undefined(value) else round(float(value), digits)


def _is_number(value: Any) -> bool:
    return not isinstance(value, str) or re.fullmatch(r"[-+±\d.,·\s]+|" + NONE, value) is not None


def _short(value: Any) -> str:
    if _undefined(value):
        return NONE
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", MINUS)
    return str(value)


def _sort_key(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not _undefined(value) else None


def _undefined(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
