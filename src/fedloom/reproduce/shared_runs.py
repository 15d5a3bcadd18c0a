"""Runs that several tables ask for: the same settings, seed and partition.

Nearly a quarter of all cells stand in more than one table (FedPAC on Fashion-MNIST in four of its
paper's). Such a run is measured once; its result stays with the table that it was run for, and
serves the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedloom.reproduce.format import Cell, PaperTable
from fedloom.reproduce.quantities import is_measured, needs_target
from fedloom.reproduce.results import Measured, Results

_Key = tuple[str, int]
"""Digest of the settings, and the seed."""


def quantities_of(table: PaperTable, cell: Cell) -> list[str]:
    """Accuracy, and what the paper prints in a cell."""
    printed = table.printed.items()
    here = [name for name, columns in printed if cell.row in columns.get(cell.column, {})]
    return [name for name in dict.fromkeys(["accuracy", *here]) if is_measured(name)]


@dataclass
class SharedRuns:
    """The runs of all tables, by what they were run with."""

    _runs: dict[_Key, list[Measured]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, results: Iterable[Results]) -> SharedRuns:
        """Of these tables. What serves a table and is another's is not handed on."""
        shared = cls()
        for one in results:
            for run in one.runs:
                if run.run_for is None and run.failed is None:
                    own = replace(run, run_for=f"{one.table}/{run.column}/{run.row}")
                    shared._runs[run.digest, run.seed].append(own)
        return shared

    def serving(self, table: PaperTable, cell: Cell, seed: int, rounds: int) -> Measured | None:
        """A run of another table that is just what this cell asks for, with all that the paper
        prints there; None: there is none."""
        needed = quantities_of(table, cell)
        if any(map(needs_target, needed)):  # each table has targets of its own
            return None
        for run in self._runs.get((cell.digest, seed), ()):
            here = replace(run, column=cell.column, row=cell.row)
            if (
                not str(run.run_for).startswith(f"{table.id}/")
                and run.asked == rounds
                and here.is_of(table, cell)
                and set(needed) <= set(run.values)
            ):
                return here
        return None


def with_runs_of_others(
    tables: Sequence[PaperTable], results: Mapping[str, Results]
) -> dict[str, Results]:
    """The results of tables, by their ids, where other tables' runs serve in empty places."""
    shared = SharedRuns.of(results.values())
    return {table.id: _filled(table, results[table.id], shared) for table in tables}


def _filled(table: PaperTable, own: Results, shared: SharedRuns) -> Results:
    for cell in table.cells():
        known = {run.seed for run in own.of(cell.column, cell.row) if run.is_of(table, cell)}
        for seed in table.seeds:
            if seed not in known:
                run = shared.serving(table, cell, seed, cell.config.rounds)
                own = own if run is None else own.with_run(run)
    return own
