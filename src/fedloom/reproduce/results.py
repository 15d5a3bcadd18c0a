"""What was measured of a table: one entry for every cell and seed, in a JSON file.

Beside the table (`TABLE.results.json`) it is published: the page of the documentation reads it
there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from fedloom.errors import RunFolderError
from fedloom.files import write_json
from fedloom.record import Summary, dump, load
from fedloom.reproduce.format import Cell, PaperTable


@dataclass(frozen=True)
class OverClients:
    """The spread of the result over clients, in percent."""

    std: float
    worst: float
    best: float


@dataclass(frozen=True)
class Measured:
    """One run of a cell, as far as it is published."""

    column: str
    row: str
    seed: int
    digest: str
    """Of the settings it was measured with."""
    asked: int
    """Rounds that it was asked for."""
    rounds: int
    """That were run: fewer where the settings end a run early."""
    seconds: float
    versions: Mapping[str, str | int]
    values: Mapping[str, float | None]
    """Quantity -> value; empty of a run that broke down."""
    over_clients: OverClients | None = None
    run_digest: str | None = None
    """Of the run's whole course (`Summary.digest`), which whoever repeats it gets, too."""
    failed: str | None = None
    """Why training broke down."""
    partition_seed: int | None = None
    """Of its partition; None where that was not yet noted, and is the one of the settings."""
    run_for: str | None = None
    """Table, column and row that it was run for, where these are others (`shared_runs`)."""

    @classmethod
    def of(
        cls,
        cell: Cell,
        asked: int,
        summary: Summary,
        values: Mapping[str, float | None],
        versions: Mapping[str, str | int],
        partition_seed: int,
    ) -> Measured:
        """A run that ended."""
        result = summary.result
        spread = OverClients(100 * result.std, 100 * min(result.values), 100 * max(result.values))
        return cls(
            cell.column,
            cell.row,
            summary.seed,
            cell.digest,
            asked,
            summary.rounds,
            summary.seconds,
            versions,
            values,
            spread,
            partition_seed=partition_seed,
            run_digest=summary.digest,
        )

    @classmethod
    def broken_down(
        cls,
        cell: Cell,
        asked: int,
        seed: int,
        why: str,
        versions: Mapping[str, str | int],
        partition_seed: int,
    ) -> Measured:
        """A run whose training broke down."""
        return cls(
            cell.column,
            cell.row,
            seed,
            cell.digest,
            asked,
            0,
            0.0,
            versions,
            {},
            failed=why,
            partition_seed=partition_seed,
        )

    def draw(self, cell: Cell) -> int:
        """The seed of its partition."""
        own = self.partition_seed
        return cell.config.partition_seed if own is None else own

    def is_of(self, table: PaperTable, cell: Cell) -> bool:
        """Whether this was measured with the cell's settings, and a partition drawn, as they are
        now."""
        here = (self.column, self.row, self.digest) == (cell.column, cell.row, cell.digest)
        return here and self.draw(cell) == table.partition_seed(cell, self.seed)


@dataclass(frozen=True)
class Results:
    """Everything that was measured of a table."""

    table: str
    runs: tuple[Measured, ...] = ()

    def of(self, column: str, row: str) -> list[Measured]:
        """The runs of a cell, by seed."""
        chosen = [run for run in self.runs if (run.column, run.row) == (column, row)]
        return sorted(chosen, key=lambda run: run.seed)

    def with_run(self, run: Measured) -> Results:
        """The same with a run in place of an earlier one of the same cell and seed.

        A longer run with the same settings stays: a short try does not undo it.
        """
        key = (run.column, run.row, run.seed)
        others = [one for one in self.runs if (one.column, one.row, one.seed) != key]
        before = [one for one in self.runs if (one.column, one.row, one.seed) == key]
        longer = [one for one in before if one.digest == run.digest and one.asked > run.asked]
        kept = longer[0] if longer and not longer[0].failed else run
        ordered = sorted([*others, kept], key=lambda one: (one.column, one.row, one.seed))
        return replace(self, runs=tuple(ordered))

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dump(self))


def add_run(path: Path, table: PaperTable, run: Measured) -> None:
    """Write a run into a file to which another process may be adding its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        read_results(path, table.id).with_run(run).save(path)


def published(table: PaperTable) -> Path:
    """Where a table's results are, once they are published."""
    return table.path.with_suffix(".results.json")


def read_results(path: Path, table: str) -> Results:
    """What a file holds; nothing where there is none."""
    if not path.exists():
        return Results(table)
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise RunFolderError(f"{path} is not valid JSON ({e}); restore it, or remove it") from None
    return load(Results, written, str(path))
