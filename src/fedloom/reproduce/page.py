"""docs/reproduction.md: every table of the papers with what was measured, from the published
results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.files import write_atomic
from fedloom.reproduce import shown
from fedloom.reproduce.availability import data_name
from fedloom.reproduce.comparison import RULE, Line, lines
from fedloom.reproduce.format import PaperTable
from fedloom.reproduce.library import PAPERS
from fedloom.reproduce.results import published, read_results
from fedloom.reproduce.terminal import data_of

COMMAND = "fedloom reproduce --page docs/reproduction.md"
_HEAD = "| column | method | quantity | paper | ours | difference | inside? | rounds run | remark |"


def write_page(tables: Sequence[PaperTable], path: Path) -> None:
    """Write the page of these tables."""
    write_atomic(path, page(tables))


def page(tables: Sequence[PaperTable]) -> str:
    """The whole page."""
    measured = {table.id: lines(table, read_results(published(table), table)) for table in tables}
    compared = [line for one in measured.values() for line in one if line.difference is not None]
    whole = [line for line in compared if line.inside is not None]
    parts = [
        "# The papers' tables, and what fedloom measures",
        f"Written by `{COMMAND}` from [reproduce](../reproduce/README.md); do not edit.",
        "Every table, and every figure that is a run, of the five papers: the number that the paper"
        " prints, ours as mean ± deviation over seeds, and ours minus the paper's. Accuracies are"
        f" in percent. {RULE[0].upper()}{RULE[1:]}; runs that are shorter than the paper's get no"
        " verdict. How to run a table: [reproduce.md](reproduce.md).",
        f"So far {len(compared)} of {sum(_printed(table) for table in tables)} printed numbers were"
        f" measured, {len(whole)} of them at the paper's length; of those,"
        f" {sum(bool(line.inside) for line in whole)} are inside.",
    ]
    begun = {table.id for table in tables if any(map(_is_shown, measured[table.id]))}
    for paper, name in PAPERS.items():
        of_paper = [table for table in tables if table.paper == paper]
        if of_paper:
            parts.append(f"## {name}")
            parts += [_section(t, measured[t.id]) for t in of_paper if t.id in begun]
            parts += _not_measured([table for table in of_paper if table.id not in begun])
    return "\n\n".join(parts) + "\n"


def _printed(table: PaperTable) -> int:
    """How many numbers the paper prints in a table."""
    return sum(len(by_row) for by_column in table.printed.values() for by_row in by_column.values())


def _is_shown(line: Line) -> bool:
    """Whether something was measured, or broke down, there."""
    return line.ours is not None or line.broken > 0


def _section(table: PaperTable, every: Sequence[Line]) -> str:
    """What was measured of a table."""
    measured = [line for line in every if _is_shown(line)]
    parts = [f"### {table.source}: {table.title}"]
    if table.remark:
        parts.append(table.remark.replace(":\n-", ":\n\n-"))
    parts.append("\n".join([_HEAD, "|---" * 9 + "|", *map(_row, measured)]))
    parts.append(f"{len(measured)} of {len(every)} numbers; all of them: {_command(table)}.")
    return "\n\n".join(parts)


def _not_measured(tables: Sequence[PaperTable]) -> list[str]:
    """The tables that are still to be measured, with their commands."""
    if not tables:
        return []
    entries = [
        f"- {table.source}: {table.title} ({_runs(table)}{_data(table)}): {_command(table)}"
        for table in tables
    ]
    return ["\n".join(["Not measured yet:", "", *entries])]


def _runs(table: PaperTable) -> str:
    runs = len(table.cells()) * len(table.seeds)
    return f"{runs} run{'' if runs == 1 else 's'}"


def _command(table: PaperTable) -> str:
    return f"`fedloom reproduce {table.id}`"


def _data(table: PaperTable) -> str:
    """The data that the command needs and does not bring; the same on every machine."""
    names = [data_name(data) for data in data_of(table)]
    return f" on {', '.join(dict.fromkeys(names))}" if names else ""


def _row(line: Line) -> str:
    cells = [
        line.column,
        line.label,
        line.quantity,
        shown.paper_number(line.printed),
        shown.our_number(line.ours),
        shown.difference(line),
        shown.verdict(line),
        shown.rounds_run(line),
        _one_line(line.remark),
    ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _one_line(text: str) -> str:
    return " ".join(text.split())
