"""A partition to look at: clients by classes as a table, and as bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import sqrt
from typing import NamedTuple

from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from fedloom.data.federated import FederatedData
from fedloom.data.partition.assignment import SplitName

# Both read on white and on near-black: at least 4:1 for text, 3:1 for shapes.
_INK, _BUBBLE = "#767676", "#3f83c8"
_LONGEST = 16  # characters of a name on an axis


class Cells(NamedTuple):
    """A table as text: the column names, and one row per client."""

    header: list[str]
    rows: list[list[str]]


def cells(data: FederatedData, split: SplitName | None = None) -> Cells:
    """Samples per client and class, with sums; a class a client lacks is a dot. Where clients have
    names, these stand beside their numbers."""
    counts, named = data.counts(split), bool(data.partition.names)
    header = ["client", *(["name"] if named else []), *data.counted, "all"]
    rows = [
        [
            str(i),
            *([name] if named else []),
            *(str(n) if n else "·" for n in row),
            str(row.sum()),
        ]
        for i, (name, row) in enumerate(zip(data.client_names, counts, strict=True))
    ]
    sums = counts.sum(axis=0)
    last = ["all", *([""] if named else []), *map(str, sums), str(sums.sum())]
    return Cells(header, [*rows, last])


def table(data: FederatedData, split: SplitName | None = None) -> Table:
    """The same for the terminal."""
    header, rows = cells(data, split)
    shown = Table(title=escape_markup(_title(data, split)))
    for name in header:
        shown.add_column(Text(name), justify="left" if name == "name" else "right")
    for row in rows[:-1]:
        shown.add_row(*map(Text, row))
    shown.add_section()
    shown.add_row(*rows[-1], style="bold")
    return shown


def bubble_svg(data: FederatedData, split: SplitName | None = None) -> str:
    """Clients across, classes down, a circle's area is its number of samples; any background."""
    counts, names = data.counts(split), data.counted
    n, k = counts.shape
    cell = max(7, min(28, 1100 // max(n, k)))
    left, top = 14 + _width(names) + 18, 40
    title = _title(data, split)
    below = _width(data.client_names) if data.partition.names else 0
    width, height = max(left + n * cell, 12 + 8 * len(title)) + 12, top + k * cell + 44 + below
    largest = max(1, int(counts.max()))
    circles = [
        f'<circle cx="{left + (i + 0.5) * cell:g}" cy="{top + (c + 0.5) * cell:g}" '
        f'r="{max(0.6, cell * 0.48 * sqrt(counts[i, c] / largest)):.2f}">'
        f"<title>{escape(who)}, {escape(names[c])}: {counts[i, c]}</title></circle>"
        for i, who in enumerate(_described(data))
        for c in range(k)
        if counts[i, c]
    ]
    body = [
        f'<text x="12" y="22" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_axes(data, cell, left, top),
        f'<g fill="{_BUBBLE}" fill-opacity="0.85">',
        *circles,
        "</g>",
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif" '
            f'font-size="11" fill="{_INK}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{n} clients, {k} classes; the largest circle is {largest} samples.</desc>",
            *body,
            "</svg>",
        ]
    )


def _described(data: FederatedData) -> list[str]:
    """'client 3', or 'client 3 (Lyon)' where clients have names."""
    if not data.partition.names:
        return [f"client {i}" for i in range(len(data))]
    return [f"client {i} ({name})" for i, name in enumerate(data.client_names)]


def _axes(data: FederatedData, cell: int, left: int, top: int) -> list[str]:
    names, clients = data.counted, len(data)
    every_class = max(1, -(-12 // cell))
    bottom = top + len(names) * cell
    below = _width(data.client_names) if data.partition.names else 0
    return [
        *(
            f'<text x="{left - 6}" y="{top + (c + 0.5) * cell + 4:g}" text-anchor="end">'
            f"{escape(_shortened(name))}</text>"
            for c, name in enumerate(names)
            if c % every_class == 0
        ),
        *(_upright_names if data.partition.names else _numbers)(data, cell, left, bottom),
        f'<text x="{left + clients * cell / 2:g}" y="{bottom + 34 + below}" text-anchor="middle">'
        f"client</text>",
        f'<text transform="translate(12 {(top + bottom) / 2:g}) rotate(-90)" '
        f'text-anchor="middle">class</text>',
        f'<path d="M{left} {top}V{bottom}H{left + clients * cell}" fill="none" stroke="{_INK}"/>',
    ]


def _numbers(data: FederatedData, cell: int, left: int, bottom: int) -> list[str]:
    every_client = max(1, -(-24 // cell))
    return [
        f'<text x="{left + (i + 0.5) * cell:g}" y="{bottom + 14}" text-anchor="middle">{i}</text>'
        for i in range(0, len(data), every_client)
    ]


def _upright_names(data: FederatedData, cell: int, left: int, bottom: int) -> list[str]:
    """Names from bottom to top, since they are wider than the cells."""
    every_client = max(1, -(-12 // cell))
    return [
        f'<text transform="translate({left + (i + 0.5) * cell + 4:g} {bottom + 8}) rotate(-90)" '
        f'text-anchor="end">{escape(_shortened(name))}</text>'
        for i, name in enumerate(data.client_names)
        if i % every_client == 0
    ]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _width(names: Sequence[str]) -> int:
    """Pixels that the longest name takes as it is shown."""
    return 7 * max(len(_shortened(name)) for name in names)


def _title(data: FederatedData, split: SplitName | None) -> str:
    recipe = data.partition.recipe
    partition = recipe.get("partition", f"{len(data)} clients")
    shift = f", {recipe['shift']}" if "shift" in recipe else ""
    return f"{recipe.get('data', data.source.name)}: {partition}{shift}, {split or 'all'} samples"
