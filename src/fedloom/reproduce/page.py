"""docs/reproduction.md: every table of the papers with what was measured, from the published
results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.durations import duration
from fedloom.files import write_atomic
from fedloom.reproduce import shown
from fedloom.reproduce.availability import data_name
from fedloom.reproduce.comparison import RULE, Line, lines, spreads
from fedloom.reproduce.format import PaperTable
from fedloom.reproduce.library import PAPERS
from fedloom.reproduce.results import Results, published, read_results
from fedloom.reproduce.shared_runs import with_runs_of_others
from fedloom.reproduce.summary import FEWEST, SHARE, TAU, Count, orders
from fedloom.reproduce.terminal import data_of

COMMAND = "fedloom reproduce --page docs/reproduction.md"
_HEAD = (
    "| column | method | quantity | paper | ours ± over seeds | difference | inside? | rounds run"
    " | remark |"
)


def write_page(tables: Sequence[PaperTable], path: Path) -> None:
    """Write the page of these tables."""
    write_atomic(path, page(tables))


def page(tables: Sequence[PaperTable]) -> str:
    """The whole page."""
    own = {table.id: read_results(published(table), table.id) for table in tables}
    results = with_runs_of_others(tables, own)
    measured = {table.id: lines(table, results[table.id]) for table in tables}
    every = [line for one in measured.values() for line in one if not line.shared]
    parts = [
        "# The papers' tables, and what fedloom measures",
        f"Written by `{COMMAND}` from [reproduce](../reproduce/README.md); do not edit.",
        "Every table, and every figure that is a run, of the five papers: the number that the paper"
        " prints, ours as mean ± deviation over seeds, and ours minus the paper's. Accuracies are"
        f" in percent. {RULE[0].upper()}{RULE[1:]}; runs that are shorter than the paper's get no"
        " verdict and are not counted. Where something stands in for a paper's data or network, it"
        " is said. What a run took is by the clock, on one core of a machine that often did other"
        " work beside it. How to run a table: [reproduce.md](reproduce.md).",
        *_summary(every, sum(_printed(table) for table in tables if table.standin is None)),
        *_orders([(table, measured[table.id]) for table in tables]),
    ]
    begun = {table.id for table in tables if any(map(_is_shown, measured[table.id]))}
    for paper, name in PAPERS.items():
        of_paper = [table for table in tables if table.paper == paper]
        if of_paper:
            parts.append(f"## {name}")
            parts += [_section(t, results[t.id], measured[t.id]) for t in of_paper if t.id in begun]
            parts += _not_measured([table for table in of_paper if table.id not in begun])
    return "\n\n".join(parts) + "\n"


def _summary(every: Sequence[Line], printed: int) -> list[str]:
    """How many numbers were measured to the end, and how many of them are inside."""
    tried = sum(line.difference is not None and line.shorter for line in every)
    kinds = {
        "the paper's data and network": [line for line in every if not line.standin],
        "stand-ins": [line for line in every if line.standin],
        "all": every,
    }
    rows = [
        "| measured with | numbers of runs to the end | inside | share | aim |",
        "|---" * 5 + "|",
    ]
    for kind, lines_of_kind in kinds.items():
        count = Count.of(lines_of_kind)
        share = shown.NOTHING if count.share is None else f"{100 * count.share:.0f} %"
        rows.append(f"| {kind} | {count.whole} | {count.inside} | {share} | {100 * SHARE:.0f} % |")
    whole = Count.of(every).whole
    return [
        f"The papers print {printed} numbers in these tables. Numbers with a verdict so far,"
        f" stand-ins included: {whole}; numbers of runs shorter than the paper's: {tried}. A run"
        " that serves several tables counts in the one that it was run for.",
        "\n".join(rows),
    ]


def _orders(tables: Sequence[tuple[PaperTable, Sequence[Line]]]) -> list[str]:
    """Kendall's tau, table by table."""
    rows = [
        f"| {PAPERS.get(table.paper, table.paper)}, {table.source} | {order.column}"
        f" | {order.quantity} | {order.rows} | {order.tau:.2f} | {TAU:g} |"
        for table, compared in tables
        for order in orders(compared)
    ]
    if not rows:
        return []
    head = ["| table | column | quantity | rows | Kendall's tau | aim |", "|---" * 6 + "|"]
    sentence = (
        "The order of the methods, of all rows that were run to the end (1: the paper's order, -1:"
        f" the reverse; columns with {FEWEST} such rows or more):"
    )
    return [sentence, "\n".join([*head, *rows])]


def _printed(table: PaperTable) -> int:
    """How many numbers the paper prints in a table."""
    return sum(len(by_row) for by_column in table.printed.values() for by_row in by_column.values())


def _is_shown(line: Line) -> bool:
    """Whether something was measured, or broke down, there."""
    return line.ours is not None or line.broken > 0


def _section(table: PaperTable, results: Results, every: Sequence[Line]) -> str:
    """What was measured of a table."""
    measured = [line for line in every if _is_shown(line)]
    parts = [f"### {table.source}: {table.title}"]
    if table.remark:
        parts.append(table.remark.replace(":\n-", ":\n\n-"))
    parts += _notes(table, results)
    whole = [line for line in measured if not line.shorter]
    tries = [line for line in measured if line.shorter]
    if whole:
        parts.append(_table(whole))
    if tries:
        parts += ["Tries, shorter than the paper's runs and not counted:", _table(tries)]
    of_all = f"{len(measured)} of {len(every)} numbers; all of them: {_command(table)}."
    parts.append(f"{of_all}{_durations(results)}")
    return "\n\n".join(parts)


def _durations(results: Results) -> str:
    """What the table's own runs took, for whoever wants to do the others."""
    seconds = [run.seconds for run in results.runs if run.run_for is None and run.failed is None]
    if not seconds:
        return ""
    least, most = duration(min(seconds)), duration(max(seconds))
    return f" A run took {least}{'' if most == least else f' to {most}'} here."


def _notes(table: PaperTable, results: Results) -> list[str]:
    """What stands in for what, and by how much ours may differ where that is more than usual."""
    whole = [] if table.standin is None else [f"Stand-in: {table.standin}."]
    columns = {name: column.standin for name, column in table.columns.items() if column.standin}
    of_columns = [f"Stand-in in {name}: {standin}." for name, standin in columns.items()]
    tolerances = [f"Tolerance in {one.sentence}." for one in spreads(table, results)]
    return [*whole, *of_columns, *tolerances]


def _table(lines_of_table: Sequence[Line]) -> str:
    return "\n".join([_HEAD, "|---" * 9 + "|", *map(_row, lines_of_table)])


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
