"""The papers' tables on a terminal: which there are, what they print, what was measured."""

from __future__ import annotations

from collections.abc import Sequence

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
    for head in ("columns", "rows", "runs"):
        listed.add_column(head, justify="right")
    listed.add_column("data", overflow="fold")
    for table in tables:
        data = [data_name(one) + ("*" if where_from(one) else "") for one in data_of(table)]
        runs = len(table.cells()) * len(table.seeds)
        counts = map(str, (len(table.columns), len(table.rows), runs))
        listed.add_row(table.id, Text(table.title), *counts, Text(", ".join(data)))
    return listed


def printed_tables(table: PaperTable) -> list[Table]:
    """What the paper prints, a table for every quantity."""
    tables = []
    for quantity, by_column in table.printed.items():
        matrix = Table(title=Text(f"{table.source}, {quantity}: {table.title}"))
        matrix.add_column("", overflow="fold")
        for column in by_column:
            matrix.add_column(Text(column), justify="right")
        for row in table.rows:
            numbers = [by_row.get(row) for by_row in by_column.values()]
            if any(numbers):
                matrix.add_row(Text(table.label(row)), *map(shown.paper_number, numbers))
        tables.append(matrix)
    return tables


def comparison_tables(table: PaperTable, lines: Sequence[Line]) -> list[Table]:
    """Paper and measurement side by side, a table for every column and quantity."""
    tables: dict[tuple[str, str], Table] = {}
    for line in lines:
        key = (line.column, line.quantity)
        if key not in tables:
            tables[key] = _empty_comparison(f"{table.id} {line.column}: {line.quantity}")
        tables[key].add_row(
            Text(line.label),
            shown.paper_number(line.printed),
            shown.our_number(line.ours),
            shown.difference(line),
            shown.rounds_run(line),
            Text(line.remark),
        )
    return list(tables.values())


def _empty_comparison(title: str) -> Table:
    compared = Table(title=Text(title))
    compared.add_column("method", overflow="fold")
    for head in ("paper", "ours", "difference", "rounds run"):
        compared.add_column(head, justify="right", no_wrap=True)
    compared.add_column("remark", overflow="fold")
    return compared
