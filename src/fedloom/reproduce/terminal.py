"""The papers' tables on a terminal: which there are, what they print, what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedloom.reproduce import shown
from fedloom.reproduce.availability import data_name, where_from
from fedloom.reproduce.comparison import Line
from fedloom.reproduce.format import PaperTable


def data_of(table: PaperTable) -> list[str]:
    """The data sets of a table."""
    return list(dict.fromkeys(cell.config.data for cell in table.cells()))


def entry(table: PaperTable) -> dict[str, str | int | list[str]]:
    """What a list says of a table."""
    missing = {data: where_from(data) for data in data_of(table)}
    return {
        "table": table.id,
        "title": table.title,
        "columns": list(table.columns),
        "rows": list(table.rows),
        "data": list(missing),
        "not at hand": [f"{data} ({where})" for data, where in missing.items() if where],
        "runs": len(table.cells()) * len(table.seeds),
    }


def list_table(tables: Sequence[PaperTable]) -> Table:
    """Every table in a line: how large it is, and whether its data is at hand."""
    listed = Table(box=SIMPLE_HEAD, pad_edge=False, caption="* data that is not at hand")
    listed.add_column("table", no_wrap=True)
    listed.add_column("title", overflow="fold")
    listed.add_column("runs", justify="right")
    listed.add_column("data", overflow="fold")
    for table in tables:
        data = [data_name(one) + ("*" if where_from(one) else "") for one in data_of(table)]
        runs = len(table.cells()) * len(table.seeds)
        listed.add_row(table.id, Text(table.title), str(runs), Text(", ".join(data)))
    return listed


def printed_tables(
    table: PaperTable, columns: Sequence[str], rows: Sequence[str], width: int
) -> list[Table]:
    """What the paper prints in these columns and rows: for every quantity a table, or several
    where its columns do not stand side by side in `width` characters."""
    tables = []
    for quantity, by_column in table.printed.items():
        here = [row for row in rows if any(row in by_column.get(c, {}) for c in columns)]
        numbers = {
            column: [shown.paper_number(by_column[column].get(row)) for row in here]
            for column in columns
            if column in by_column
        }
        labels = [table.label(row) for row in here]
        for part in _side_by_side(labels, numbers, width) if here else ():
            matrix = Table(title=Text(f"{table.source}, {quantity}: {table.title}"))
            matrix.add_column("", overflow="fold")
            for column in part:
                matrix.add_column(Text(column), justify="right")
            for place, label in enumerate(labels):
                matrix.add_row(Text(label), *(numbers[column][place] for column in part))
            tables.append(matrix)
    return tables


def _side_by_side(
    labels: Sequence[str], numbers: Mapping[str, Sequence[str]], width: int
) -> list[list[str]]:
    """The columns in groups that fit a line, each with a frame of three characters."""
    first = max(map(len, labels)) + 4
    groups: list[list[str]] = []
    left = 0
    for column, texts in numbers.items():
        needed = max(len(column), *map(len, texts)) + 3
        if not groups or needed > left:
            groups.append([])
            left = width - first
        groups[-1].append(column)
        left -= needed
    return groups


def remark(table: PaperTable) -> str:
    """What the paper leaves open, a line for every item, which the terminal wraps."""
    lines = re.sub(r"\s*\n(?!- )\s*", " ", (table.remark or "").strip())
    return f"{lines}\n" if lines else ""


def comparison_tables(table: PaperTable, lines: Sequence[Line]) -> list[Table]:
    """Paper and measurement side by side, a table for every column and quantity; measurement alone
    where nothing is printed."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.column, line.quantity), []).append(line)
    return [
        _comparison(f"{table.id} {column}: {quantity}", group)
        for (column, quantity), group in groups.items()
    ]


def _comparison(title: str, lines: Sequence[Line]) -> Table:
    printed = any(line.printed is not None for line in lines)
    compared = Table(title=Text(title))
    compared.add_column("method", overflow="fold")
    heads = ("paper", "ours", "difference") if printed else ("measured",)
    for head in (*heads, "rounds run"):
        compared.add_column(head, justify="right", no_wrap=True)
    compared.add_column("remark", overflow="fold")
    for line in lines:
        numbers = [shown.our_number(line.ours)]
        if printed:
            numbers = [shown.paper_number(line.printed), *numbers, shown.difference(line)]
        compared.add_row(Text(line.label), *numbers, shown.rounds_run(line), Text(line.remark))
    return compared
