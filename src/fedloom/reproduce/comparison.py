"""Paper and measurement side by side: one line for every printed number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from fedloom.launch.tables import OverSeeds
from fedloom.reproduce.format import PaperTable, Printed
from fedloom.reproduce.quantities import NOT_MEASURED, in_percent, is_measured
from fedloom.reproduce.results import Measured, Results

DEVIATIONS = 2.0
POINTS = 1.0
RULE = (
    f"inside: the difference is at most {DEVIATIONS:g} times the root of the sum of both squared"
    f" deviations where both are known, and else at most {POINTS:g} point"
)


@dataclass(frozen=True)
class Line:
    """A number of the paper and what was measured of it."""

    quantity: str
    column: str
    row: str
    label: str
    """The row as the paper calls it."""
    printed: Printed | None
    ours: OverSeeds | None
    seeds: int
    rounds: int | None
    """That were run, the fewest over seeds."""
    paper_rounds: int
    broken: int
    """Runs whose training broke down."""
    remark: str
    stopped: bool = False
    """Whether an early stop ended all runs that have fewer rounds than the paper's."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.printed is None:
            return None
        return self.ours.mean - self.printed.value

    @property
    def shorter(self) -> bool:
        """Whether fewer rounds were run than the paper's, and not because of an early stop."""
        return self.rounds is not None and self.rounds < self.paper_rounds and not self.stopped

    @property
    def inside(self) -> bool | None:
        """Whether both agree as `RULE` says; None of a shorter run, and of a number without a
        deviation that is not in percent."""
        if self.difference is None or self.printed is None or self.ours is None or self.shorter:
            return None
        deviations = (self.printed.deviation, self.ours.std)
        if deviations[0] is not None and deviations[1] is not None:
            return abs(self.difference) <= DEVIATIONS * math.hypot(deviations[0], deviations[1])
        return abs(self.difference) <= POINTS if in_percent(self.quantity) else None


def lines(
    table: PaperTable,
    results: Results,
    columns: Iterable[str] | None = None,
    rows: Iterable[str] | None = None,
) -> list[Line]:
    """A line for every printed number of these columns and rows; of a cell without one, a line for
    its accuracy where it was measured."""
    wanted_columns, wanted_rows = list(columns or table.columns), list(rows or table.rows)
    quantities = list(dict.fromkeys(["accuracy", *table.printed]))
    every = [
        _line(table, results, quantity, column, row)
        for quantity in quantities
        for column in wanted_columns
        for row in wanted_rows
        if table.has(column, row)
    ]
    return [
        line
        for line in every
        if line.printed is not None or (line.quantity == "accuracy" and line.ours is not None)
    ]


def _line(table: PaperTable, results: Results, quantity: str, column: str, row: str) -> Line:
    parts = table.columns[column].average_of or (column,)
    runs = [run for part in parts for run in results.of(part, row)]
    current = [run for run in runs if _is_current(table, run)]
    values = _over_columns(current, quantity, len(parts))
    counted = [run for run in current if run.seed in values]
    paper_rounds = _paper_rounds(table, parts[0], row)
    line = Line(
        quantity=quantity,
        column=column,
        row=row,
        label=table.label(row),
        printed=table.printed.get(quantity, {}).get(column, {}).get(row),
        ours=OverSeeds.of(values.values()),
        seeds=len(values),
        rounds=min((run.rounds for run in counted), default=None),
        paper_rounds=paper_rounds,
        stopped=all(run.stopped or run.rounds >= paper_rounds for run in counted),
        broken=sum(run.failed is not None for run in current),
        remark="",
    )
    return replace(line, remark=table.rows[row].absent or _remark(line, runs, current))


def _is_current(table: PaperTable, run: Measured) -> bool:
    """Whether a run was measured with the settings that the table has today."""
    runs_today = table.rows[run.row].method is not None and run.column in table.run_columns
    return runs_today and run.is_of(table.cell(run.column, run.row))


def _over_columns(runs: list[Measured], quantity: str, columns: int) -> dict[int, float]:
    """Seed -> the mean over columns, of those seeds that all columns have."""
    by_seed: dict[int, list[float]] = {}
    for run in runs:
        value = run.values.get(quantity)
        if value is not None:
            by_seed.setdefault(run.seed, []).append(value)
    return {seed: fmean(values) for seed, values in by_seed.items() if len(values) == columns}


def _paper_rounds(table: PaperTable, column: str, row: str) -> int:
    if table.rows[row].method is None:
        return 0
    return table.cell(column, row).config.rounds


def _remark(line: Line, runs: list[Measured], current: list[Measured]) -> str:
    """What a reader should know of a line."""
    remarks = []
    if not is_measured(line.quantity):
        remarks.append(NOT_MEASURED)
    failed = [run.failed for run in current if run.failed is not None]
    if failed:
        remarks.append(f"{len(failed)} of {len(current)} runs broke down ({failed[0]})")
    if len(runs) > len(current):
        remarks.append("measured with other settings than the table has now; run it again")
    if line.shorter:
        remarks.append(f"{line.rounds} of the paper's {line.paper_rounds} rounds")
    unreached = "_to_" in line.quantity and line.ours is None and is_measured(line.quantity)
    if unreached and len(current) > len(failed):
        remarks.append("the target was not reached")
    return "; ".join(remarks)
