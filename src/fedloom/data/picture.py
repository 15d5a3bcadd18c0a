"""A partition to look at: clients by classes as a table, and as bubbles."""

from __future__ import annotations

from html import escape
from math import sqrt
from typing import NamedTuple

from rich.table import Table

from fedloom.data.federated import FederatedData
from fedloom.data.partition.assignment import SplitName

# Both read on white and on near-black: at least 4:1 for text, 3:1 for shapes.
_INK, _BUBBLE = "#767676", "#3f83c8"


class Cells(NamedTuple):
    """A table as text: the column names, and one row per client."""

    header: list[str]
    rows: list[list[str]]


def cells(data: FederatedData, split: SplitName | None = None) -> Cells:
    """Samples per client and class, with sums; a class a client lacks is a dot."""
    counts = data.counts(split)
    header = ["client", *data.source.class_names, "all"]
    rows = [
        [str(i), *(str(n) if n else "·" for n in row), str(row.sum())]
        for i, row in enumerate(counts)
    ]
    sums = counts.sum(axis=0)
    return Cells(header, [*rows, ["all", *map(str, sums), str(sums.sum())]])


def table(data: FederatedData, split: SplitName | None = None) -> Table:
    """The same for the terminal."""
    header, rows = cells(data, split)
    made = Table(title=_title(data, split))
    for name in header:
        made.add_column(name, justify="right")
    for row in rows[:-1]:
        made.add_row(*row)
    made.add_section()
    made.add_row(*rows[-1], style="bold")
    return made


def bubble_svg(data: FederatedData, split: SplitName | None = None) -> str:
    """Clients across, classes down, a circle's area is its number of samples; any background."""
    counts, names = data.counts(split), data.source.class_names
    n, k = counts.shape
    cell = max(7, min(28, 1100 // max(n, k)))
    left, top = 14 + 7 * min(16, max(len(name) for name in names)) + 18, 40
    title = _title(data, split)
    width, height = max(left + n * cell, 12 + 8 * len(title)) + 12, top + k * cell + 44
    largest = max(1, int(counts.max()))
    circles = [
        f'<circle cx="{left + (i + 0.5) * cell:g}" cy="{top + (c + 0.5) * cell:g}" '
        f'r="{max(0.6, cell * 0.48 * sqrt(counts[i, c] / largest)):.2f}">'
        f"<title>client {i}, {escape(names[c])}: {counts[i, c]}</title></circle>"
        for i in range(n)
        for c in range(k)
        if counts[i, c]
    ]
    body = [
        f'<text x="12" y="22" font-size="13" font-weight="bold">{escape(title)}</text>',
        *_axes(names, n, cell, left, top),
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


def _axes(names: tuple[str, ...], clients: int, cell: int, left: int, top: int) -> list[str]:
    every_client, every_class = max(1, -(-24 // cell)), max(1, -(-12 // cell))
    bottom = top + len(names) * cell
    return [
        *(
            f'<text x="{left - 6}" y="{top + (c + 0.5) * cell + 4:g}" text-anchor="end">'
            f"{escape(name if len(name) <= 16 else name[:15] + '…')}</text>"
            for c, name in enumerate(names)
            if c % every_class == 0
        ),
        *(
            f'<text x="{left + (i + 0.5) * cell:g}" y="{bottom + 14}" text-anchor="middle">'
            f"{i}</text>"
            for i in range(0, clients, every_client)
        ),
        f'<text x="{left + clients * cell / 2:g}" y="{bottom + 34}" text-anchor="middle">'
        f"client</text>",
        f'<text transform="translate(12 {(top + bottom) / 2:g}) rotate(-90)" '
        f'text-anchor="middle">class</text>',
        f'<path d="M{left} {top}V{bottom}H{left + clients * cell}" fill="none" stroke="{_INK}"/>',
    ]


def _title(data: FederatedData, split: SplitName | None) -> str:
    recipe = data.partition.recipe
    made = recipe.get("partition", f"{len(data)} clients")
    shift = f", {recipe['shift']}" if "shift" in recipe else ""
    return f"{recipe.get('data', data.source.name)}: {made}{shift}, {split or 'all'} samples"
