"""What a table without printed numbers consists of: its columns, its rows, what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedloom.reproduce.comparison import Line
from fedloom.reproduce.format import Column, PaperTable, Row
from fedloom.reproduce.terminal import comparison_tables


def heading(table: PaperTable) -> str:
    """What the table is, and what all its runs have in common."""
    seeds = f"seed{'s' if len(table.seeds) > 1 else ''} {', '.join(map(str, table.seeds))}"
    common = "; ".join([*_written(table.settings), seeds])
    return f"{table.id}: {table.title} ({table.source})\nall runs: {common}"


def contents(
    table: PaperTable, columns: Sequence[str], rows: Sequence[str], measured: Sequence[Line]
) -> list[Table]:
    """These columns, these rows, and the measured numbers of both."""
    here = [row for row in rows if any(table.has(column, row) for column in columns)]
    return [
        _listed(
            ("column", "what it adds"),
            ((name, "; ".join(_of_column(table.columns[name]))) for name in columns),
        ),
        _listed(("row", "method", "what it adds"), (_row(table, name) for name in here)),
        *comparison_tables(table, measured),
    ]


def remarks(
    table: PaperTable, columns: Sequence[str], rows: Sequence[str], measured: Sequence[Line]
) -> list[str]:
    """The table's remarks on cells that were not measured; the others stand beside numbers."""
    beside = {(line.column, line.row) for line in measured}
    return [
        f"{table.label(row)} in {column}: {' '.join(remark.split())}"
        for column in columns
        for row, remark in table.remarks.get(column, {}).items()
        if row in rows and (column, row) not in beside
    ]


def _of_column(column: Column) -> Iterator[str]:
    if column.average_of:
        yield f"mean of {', '.join(column.average_of)}"
    yield from _written(column.settings)
    if column.standin:
        yield f"stand-in: {column.standin}"


def _row(table: PaperTable, name: str) -> tuple[str, str, str]:
    """The row's name, by which --methods chooses it, and its label where that is another."""
    row, label = table.rows[name], table.label(name)
    named = name if label == name else f"{name} ({label})"
    return named, row.method or "none", "; ".join(_of_row(row))


def _of_row(row: Row) -> Iterator[str]:
    if row.absent:
        yield f"absent: {row.absent}"
    yield from _written(row.settings)
    if row.columns is not None:
        yield f"only in {', '.join(row.columns)}"
    for column, settings in row.cells.items():
        yield f"in {column}: {', '.join(_written(settings))}"


def _written(settings: Mapping[str, Any]) -> list[str]:
    """Keys and values as a file has them."""
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def _listed(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    listed = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        listed.add_column(head, overflow="fold")
    for line in lines:
        listed.add_row(*map(Text, line))
    return listed
