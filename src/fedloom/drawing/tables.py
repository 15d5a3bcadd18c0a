"""Tables of a report: numbers with their sort keys, the best in bold, headers that sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fedloom.drawing.html import Html, join, tag

NONE, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """What is read, and what is sorted by; None sorts last."""

    text: object
    sort: float | str | None = None
    tone: str = ""
    """A class of the style sheet: `loses`, `gains`."""


@dataclass(frozen=True)
class Column:
    """A header, what it means, and which end is good."""

    head: str
    hint: str = ""
    better: Literal["high", "low", ""] = ""
    numeric: bool = True


def number(value: float | None, digits: int = 2, scale: float = 1.0) -> Cell:
    """A plain number.

    >>> number(0.1234, 1, 100).text, number(None).text
    ('12.3', '–')
    """
    if value is None or not math.isfinite(value):
        return Cell(NONE)
    return Cell(f"{scale * value:,.{digits}f}".replace("-", MINUS), value)


class MeanAndStd(Protocol):
    """A share over seeds; no deviation where there is a single seed."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float | None: ...


def percent(share: MeanAndStd | None, digits: int = 2, scale: float = 100) -> Cell:
    """Mean ± standard deviation over seeds, in percent; with a scale of 1, as they are.

    >>> from types import SimpleNamespace
    >>> percent(SimpleNamespace(mean=0.5, std=0.01)).text
    '50.00 ± 1.00'
    """
    if share is None:
        return Cell(NONE)
    deviation = "" if share.std is None else f" ± {scale * share.std:.{digits}f}"
    return Cell(f"{scale * share.mean:.{digits}f}{deviation}", share.mean)


def points(value: float, digits: int = 1, scale: float = 100) -> str:
    """A difference of shares in percentage points, with its sign; with a scale of 1, as it is.

    >>> points(0.031), points(-0.5), points(-0.0001)
    ('+3.1', '−50.0', '0.0')
    """
    text = f"{scale * value:+.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text.replace("-", MINUS)


def p_value(p: float) -> str:
    """As it is read in a paper.

    >>> p_value(0.0004), p_value(0.043), p_value(float("nan"))
    ('< 0.001', '0.043', '–')
    """
    if math.isnan(p):
        return NONE
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def html_table(
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    sortable: bool = True,
    bold: Sequence[bool] | None = None,
) -> Html:
    """A table in a box that scrolls on its own; the first cell of a row is its header.

    `bold`: which rows may hold a best value.
    """
    allowed = [True] * len(rows) if bold is None else bold
    best = [
        _best([r[i] for r, ok in zip(rows, allowed, strict=True) if ok], c)
        for i, c in enumerate(columns)
    ]
    body = [
        tag(
            "tr",
            [
                _cell(
                    cell, columns[i], i == 0, ok and cell.sort is not None and cell.sort == best[i]
                )
                for i, cell in enumerate(row)
            ],
        )
        for row, ok in zip(rows, allowed, strict=True)
    ]
    head = tag("tr", [_head(c, sortable) for c in columns])
    table = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", head),
        tag("tbody", body),
        id=name,
        class_="sortable" if sortable else None,
    )
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _head(column: Column, sortable: bool) -> Html:
    hint = column.hint or None
    inner: Html = join(column.head)
    if sortable:
        inner = tag("button", column.head, type="button", title=hint)
    kind = "num" if column.numeric else None
    return tag("th", inner, scope="col", class_=kind, title=None if sortable else hint)


def _cell(cell: Cell, column: Column, header: bool, best: bool) -> Html:
    shown: object = tag("strong", cell.text) if best else cell.text
    classes = " ".join(filter(None, ["num" if column.numeric else "", cell.tone]))
    extra = {"class_": classes or None, "data_sort": cell.sort}
    return tag("th", shown, scope="row", **extra) if header else tag("td", shown, **extra)


def _best(cells: list[Cell], column: Column) -> float | None:
    values = [c.sort for c in cells if isinstance(c.sort, int | float)]
    if len(values) < 2 or not column.better:
        return None
    return max(values) if column.better == "high" else min(values)
