"""Run the cells of a table, one after the other; what is finished is not run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from fedloom.data import FederatedData
from fedloom.errors import BadInput, FedloomError, TrainingError, suggestion
from fedloom.launch.compare import Watch
from fedloom.launch.start import complete, engine_of
from fedloom.record import RoundRecord
from fedloom.reproduce.availability import where_from
from fedloom.reproduce.estimate import Clock, Estimate
from fedloom.reproduce.format import Cell, PaperTable
from fedloom.reproduce.quantities import Ended, value_of
from fedloom.reproduce.results import Measured, Results, add_run, published, read_results
from fedloom.reproduce.shared_runs import SharedRuns, quantities_of
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import DIVIDING, Experiment, federated
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_records

RUNS = Path("runs/reproduce")


@dataclass(frozen=True)
class Choice:
    """Which part of a table is run, and for how long."""

    columns: tuple[str, ...] = ()
    """Empty: all."""
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    rounds: int | None = None
    """Fewer than the paper's, for a try."""

    @classmethod
    def written(
        cls, columns: str | None, rows: str | None, seeds: str | None, rounds: int | None
    ) -> Choice:
        """From lists as a command line has them: `fedpac,fedrep`."""
        numbers = _words(seeds)
        for number in numbers:
            if not number.isdecimal():
                raise BadInput(f"seeds are whole numbers such as 0,1,2 and not {number!r}")
        return cls(_words(columns), _words(rows), tuple(map(int, numbers)), rounds)

    def check_names(self, table: PaperTable) -> None:
        """Refuse a column or row that the table lacks."""
        for kind, names, known in (
            ("column", self.columns, list(table.columns)),
            ("row", self.rows, list(table.rows)),
        ):
            for name in names:
                if name not in known:
                    raise BadInput(f"{table.id} has no {kind} {name!r}{suggestion(name, known)}")

    def cells(self, table: PaperTable) -> list[Cell]:
        """The chosen cells of a table, column by column."""
        self.check_names(table)
        columns = [c for name in self.columns for c in table.columns[name].average_of or (name,)]
        return table.cells(dict.fromkeys(columns) or None, self.rows or None)

    def seeds_of(self, table: PaperTable) -> tuple[int, ...]:
        """Those asked for, or the table's."""
        return self.seeds or table.seeds

    def rounds_of(self, cell: Cell) -> int:
        """How many rounds a cell is run."""
        return cell.config.rounds if self.rounds is None else self.rounds

    def shorter_than(self, table: PaperTable) -> str:
        """One sentence where some cell is run for fewer rounds than the paper's; else empty."""
        longer = [c.config.rounds for c in self.cells(table) if c.config.rounds > self.rounds_of(c)]
        if not longer:
            return ""
        return (
            f"SHORTER THAN THE PAPER: rounds = {self.rounds} in place of {max(longer)}; such"
            f" numbers are a try, and no reproduction of {table.source}"
        )


@dataclass
class Measurement:
    """A table that is being measured: where its runs and results go, and who watches."""

    table: PaperTable
    choice: Choice = field(default_factory=Choice)
    out: Path = RUNS
    how: dict[str, Any] = field(default_factory=dict)
    """Keys of a run that are for whoever runs it: engine, workers, device ..."""
    publish: bool = False
    overwrite: bool = False
    note: Callable[[str], None] = print
    """Is given what whoever waits should know."""

    _estimate: Estimate = field(default_factory=Estimate, init=False)
    _data: tuple[str, FederatedData] | None = field(default=None, init=False)
    _missing: set[str] = field(default_factory=set, init=False)

    @property
    def folder(self) -> Path:
        """Of the table's runs."""
        return self.out / self.table.paper / self.table.name

    @property
    def files(self) -> list[Path]:
        """Where results are written."""
        beside = [published(self.table)] if self.publish else []
        return [self.folder / "results.json", *beside]

    @property
    def results(self) -> Results:
        """What was measured here, and what is published beside the table of other cells."""
        found = read_results(published(self.table), self.table.id)
        for run in read_results(self.files[0], self.table.id).runs:
            found = found.with_run(run)
        return found

    @property
    def runs(self) -> int:
        """How many runs were chosen."""
        return len(self.choice.cells(self.table)) * len(self.choice.seeds_of(self.table))

    @property
    def estimate(self) -> Estimate:
        """How long the rest takes, as far as runs that have ended here tell."""
        results, estimate = read_results(self.files[0], self.table.id), Estimate()
        for cell in self.choice.cells(self.table):
            ended = [
                run for run in results.of(cell.column, cell.row) if run.is_of(self.table, cell)
            ]
            seconds = [run.seconds / run.rounds for run in ended if run.rounds]
            if seconds:
                estimate.timed_round(cell, fmean(seconds))
            for seed in self.choice.seeds_of(self.table):
                if self._kept(results, cell, seed) is None:
                    estimate.add(cell, seed, self.choice.rounds_of(cell))
        return estimate

    def run(self, watch: Watch) -> Results:
        """Every chosen cell with every seed; the results are written after every run."""
        cells, seeds = self.choice.cells(self.table), self.choice.seeds_of(self.table)
        results, self._estimate = read_results(self.files[0], self.table.id), self.estimate
        ended = self.runs - len(self._estimate.left)
        if ended:
            self.note(f"{self.table.id}: {ended} of {self.runs} runs have ended and are kept")
        for number, cell in enumerate(cells):
            for place, seed in enumerate(seeds):
                measured = self._kept(results, cell, seed)
                if measured is None:
                    over = number * len(seeds) + place
                    measured = self._measured(cell, seed, watch, over)
                if measured is None:
                    for other in seeds:
                        self._estimate.drop(cell, other)
                    break
                for file in self.files:
                    add_run(file, self.table, measured)
        if cells and len(self._missing) == len({cell.config.data for cell in cells}):
            raise BadInput(f"nothing of {self.table.id} was run, as none of its data is at hand")
        return read_results(self.files[0], self.table.id)

    def _kept(self, results: Results, cell: Cell, seed: int) -> Measured | None:
        """The result of a run that has ended or broken down, whichever engine it had, also for
        another table; None: there is none, or it lacks a quantity that the table has now."""
        if self.overwrite:
            return None
        return self._own(results, cell, seed) or self._of_another_table(cell, seed)

    def _own(self, results: Results, cell: Cell, seed: int) -> Measured | None:
        paths = RunPaths(self._folder(cell, seed))
        for run in results.of(cell.column, cell.row):
            alike = run.is_of(self.table, cell) and run.seed == seed
            if alike and run.asked == self.choice.rounds_of(cell):
                if run.failed is not None:
                    return run if paths.config.exists() else None
                complete = set(quantities_of(self.table, cell)) <= set(run.values)
                return run if complete and paths.summary.exists() else None
        return None

    def _of_another_table(self, cell: Cell, seed: int) -> Measured | None:
        if (cell.column, cell.row) in self._begun_with:  # its own folder is needed
            return None
        return self._of_others.serving(self.table, cell, seed, self.choice.rounds_of(cell))

    @cached_property
    def _begun_with(self) -> set[tuple[str, str] | None]:
        """Cells with whose models others begin."""
        return {cell.begins_with for cell in self.table.cells()}

    @cached_property
    def _of_others(self) -> SharedRuns:
        """What other tables' commands have measured, and still have in their folders."""
        found = []
        for file in sorted(self.out.glob("*/*/results.json")):
            results = read_results(file, "/".join(file.parts[-3:-1]))
            whole = [r for r in results.runs if _summary(file.parent, r).exists()]
            found.append(replace(results, runs=tuple(whole)))
        return SharedRuns.of(found)

    def _measured(self, cell: Cell, seed: int, watch: Watch, over: int) -> Measured | None:
        """One run, new, resumed or read from its folder; None where its data cannot be had."""
        config = self._config(cell, seed)
        data = self._divided(config)
        if data is None:
            return None
        experiment, paths = Experiment.build(config, None, data), RunPaths(str(config.out))
        clock = Clock(self._estimate, cell, seed, self.note)
        watchers = [clock, *watch(f"{cell.column} {self.table.label(cell.row)}", over)]
        try:
            with engine_of(experiment.config) as engine:
                summary = complete(experiment, engine, watchers, self.overwrite)
        except TrainingError as e:
            self.note(f"{cell.row} in {cell.column}, seed {seed}: {e}")
            self._estimate.drop(cell, seed)
            return Measured.broken_down(
                cell, config.rounds, seed, str(e), _versions(paths), config.partition_seed
            )
        records = read_records(paths.metrics, RoundRecord)
        run = Ended(experiment, summary, records, self.table.targets.get(cell.column))
        values = {name: value_of(name, run) for name in quantities_of(self.table, cell)}
        return Measured.of(
            cell, config.rounds, summary, values, _versions(paths), config.partition_seed
        )

    def _config(self, cell: Cell, seed: int) -> RunConfig:
        """The run of a cell."""
        begin = {} if cell.begins_with is None else {"start": self._begin(cell, seed)}
        return cell.config.changed(
            **self.how,
            **begin,
            rounds=self.choice.rounds_of(cell),
            seed=seed,
            partition_seed=self.table.partition_seed(cell, seed),
            title=self.table.label(cell.row),
            out=str(self._folder(cell, seed)),
        )

    def _folder(self, cell: Cell, seed: int) -> Path:
        """Of a cell's run; a run of other than the paper's rounds has a folder of its own."""
        rounds = self.choice.rounds_of(cell)
        other = "" if rounds == cell.config.rounds else f"-rounds{rounds}"
        return self.folder / cell.column / f"{cell.row}-seed{seed}{other}"

    def _begin(self, cell: Cell, seed: int) -> str:
        """The folder of the run with whose model a cell begins."""
        assert cell.begins_with is not None
        folder = self._folder(self.table.cell(*cell.begins_with), seed)
        if not RunPaths(folder).summary.exists():
            raise BadInput(
                f"{cell.row} in {cell.column} begins with the model of {cell.begins_with[1]} in"
                f" {cell.begins_with[0]}, seed {seed}, which was not run; run that column first"
            )
        return str(folder)

    def _divided(self, config: RunConfig) -> FederatedData | None:
        """The data of a cell, kept for the next one that divides it alike; None, and one sentence
        the first time, where it cannot be had."""
        key = str([getattr(config, name) for name in ("data", *DIVIDING)])
        if self._data is not None and self._data[0] == key:
            return self._data[1]
        if config.data in self._missing:
            return None
        try:
            data = federated(config)
        except FedloomError as e:
            if not where_from(config.data):
                raise
            self._missing.add(config.data)
            self.note(str(e))
            return None
        self._data = (key, data)
        return data


def _summary(table: Path, run: Measured) -> Path:
    """Of a run of the paper's length."""
    return RunPaths(table / run.column / f"{run.row}-seed{run.seed}").summary


def _versions(paths: RunPaths) -> dict[str, str | int]:
    """What the run was computed with, which may be long ago."""
    versions: dict[str, str | int] = json.loads(paths.versions.read_text(encoding="utf-8"))
    return versions


def _words(written: str | None) -> tuple[str, ...]:
    """`a,b` as a list; None and empty: nothing."""
    return tuple(word.strip() for word in (written or "").split(",") if word.strip())
