"""Paper and measurement side by side: one line for every printed number.

Ours is inside where it differs from the paper's number by at most a point of percent. Where a table
names a wider tolerance, because the draw of the partition decides more than that, it counts once
runs with several draws have shown it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedloom.launch.tables import OverSeeds
from fedloom.reproduce.format import Cell, PaperTable, Printed
from fedloom.reproduce.quantities import NOT_MEASURED, in_percent, is_measured
from fedloom.reproduce.results import Measured, Results

POINTS = 1.0
"""By which ours may differ, unless a table shows that the draw of the partition decides more."""
DRAWS = 3
"""Partitions that show how much their draw decides."""
RULE = (
    f"inside: the difference is at most {POINTS:g} point, or as many as a table names because the"
    " draw of the partition decides more; a number of which a run broke down is outside"
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
    asked: int | None
    """Rounds that the runs were asked for, the fewest over seeds."""
    paper_rounds: int
    broken: int
    """Runs whose training broke down."""
    remark: str
    standin: bool = False
    """Whether something stands in for the paper's data or network."""
    shared: bool = False
    """Whether all runs are another table's, which have the same settings."""
    draws: int = 1
    """Different partitions among the seeds."""
    tolerance: float = POINTS
    """By how many points ours may differ."""

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.printed is None:
            return None
        return self.ours.mean - self.printed.value

    @property
    def shorter(self) -> bool:
        """Whether it was asked for fewer rounds than the paper's."""
        return self.asked is not None and self.asked < self.paper_rounds

    @property
    def inside(self) -> bool | None:
        """Whether both agree as `RULE` says; None of a shorter run, and of a number that is not in
        percent."""
        if self.printed is None or self.shorter or not in_percent(self.quantity):
            return None
        if self.broken:  # or else who breaks down would count less than who misses
            return False
        if self.difference is None:
            return None
        return round(abs(self.difference), 2) <= self.tolerance  # the digits that are shown


@dataclass(frozen=True)
class Spread:
    """How much the draw of the partition decides in a column."""

    column: str
    points: float
    """The tolerance that the table names."""
    why: str
    deviation: float | None
    """Over draws, in points of accuracy: the root mean square over rows; None: not measured."""
    rows: tuple[str, ...]
    """Labels of the rows with enough draws."""

    @property
    def shown(self) -> bool:
        """Whether two draws often differ by more than the narrow tolerance."""
        return self.deviation is not None and 2 * self.deviation > POINTS

    @property
    def sentence(self) -> str:
        """Tolerance, reason and evidence."""
        text = f"{self.column}: ± {self.points:g} points, because {self.why.rstrip('.')}"
        if self.deviation is None:
            return (
                f"{text}. Not shown yet, so ± {POINTS:g} counts: that takes a row with {DRAWS}"
                " seeds that each draw a partition (`partition_by_seed`)"
            )
        evidence = (
            f"over {DRAWS} or more draws of the partition the accuracy of"
            f" {', '.join(self.rows)} deviates by {self.deviation:.2f} points"
        )
        if self.shown:
            return f"{text}: {evidence}"
        return f"{text}; but {evidence} only, so ± {POINTS:g} counts"


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
    wider = {one.column: one.points for one in spreads(table, results) if one.shown}
    every = [
        replace(_line(table, results, quantity, column, row), tolerance=wider.get(column, POINTS))
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


def spreads(table: PaperTable, results: Results) -> list[Spread]:
    """What was measured of the draw of the partition, for every column with a tolerance."""
    columns = {name: table.tolerance_of(name) for name in table.columns}
    return [
        _spread(table, results, column, tolerance.points, tolerance.why)
        for column, tolerance in columns.items()
        if tolerance is not None
    ]


def _spread(table: PaperTable, results: Results, column: str, points: float, why: str) -> Spread:
    every = [
        _line(table, results, "accuracy", column, row)
        for row in table.rows
        if table.has(column, row)
    ]
    enough = [line for line in every if line.draws >= DRAWS and not line.shorter]
    squares = [line.ours.std**2 for line in enough if line.ours and line.ours.std is not None]
    deviation = math.sqrt(fmean(squares)) if squares else None
    return Spread(column, points, why, deviation, tuple(line.label for line in enough))


def _line(table: PaperTable, results: Results, quantity: str, column: str, row: str) -> Line:
    parts = table.columns[column].average_of or (column,)
    runs = [run for part in parts for run in results.of(part, row)]
    current = _longest(table, [run for run in runs if _is_current(table, run)])
    values = _over_columns(current, quantity, len(parts))
    counted = [run for run in current if run.seed in values]
    line = Line(
        quantity=quantity,
        column=column,
        row=row,
        label=table.label(row),
        printed=table.printed.get(quantity, {}).get(column, {}).get(row),
        ours=OverSeeds.of(values.values()),
        seeds=len(values),
        rounds=min((run.rounds for run in counted), default=None),
        asked=min((run.asked for run in current), default=None),
        paper_rounds=_paper_rounds(table, parts[0], row),
        broken=sum(run.failed is not None for run in current),
        remark="",
        standin=bool(table.standin_of(column)),
        shared=bool(current) and all(run.run_for is not None for run in current),
        draws=len({run.draw(_cell(table, run)) for run in counted}),
    )
    stale = not all(_is_current(table, run) for run in runs)
    remarks = [
        *(["stand-in"] if line.standin else []),
        table.rows[row].absent or _remark(line, stale, current),
        table.remarks.get(column, {}).get(row, ""),
    ]
    return replace(line, remark="; ".join(filter(None, remarks)))


def _cell(table: PaperTable, run: Measured) -> Cell:
    return table.cell(run.column, run.row)


def _is_current(table: PaperTable, run: Measured) -> bool:
    """Whether a run was measured with the settings that the table has today."""
    if run.row not in table.rows or run.column not in table.run_columns:
        return False
    has_method = table.rows[run.row].method is not None
    return has_method and run.is_of(table, _cell(table, run))


def _longest(table: PaperTable, runs: Sequence[Measured]) -> list[Measured]:
    """The runs of the paper's length, where there are any: a try of another seed does not count
    beside them."""
    whole = [run for run in runs if run.asked >= _cell(table, run).config.rounds]
    return whole or list(runs)


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


def _remark(line: Line, stale: bool, current: list[Measured]) -> str:
    """What a reader should know of a line."""
    remarks = []
    if not is_measured(line.quantity):
        remarks.append(NOT_MEASURED)
    failed = [run.failed for run in current if run.failed is not None]
    if failed:
        remarks.append(f"{len(failed)} of {len(current)} runs broke down ({failed[0]})")
    if stale:
        remarks.append("measured with other settings than the table has now; run it again")
    if line.shorter:
        remarks.append(f"{line.asked} of the paper's {line.paper_rounds} rounds")
    unreached = "_to_" in line.quantity and line.ours is None and is_measured(line.quantity)
    if unreached and len(current) > len(failed):
        remarks.append("the target was not reached")
    if digests := [run.run_digest[:8] for run in current if run.run_digest]:
        remarks.append(f"run{'s' if len(digests) > 1 else ''} {', '.join(digests)}")
    if others := sorted({run.run_for for run in current if run.run_for is not None}):
        remarks.append(f"measured for {', '.join(others)}, with the same settings")
    if any(run.run_digest is None and run.failed is None for run in current):
        remarks.append("measured before runs had digests")
    return "; ".join(remarks)
