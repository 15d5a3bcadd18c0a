"""The file of a table: settings, columns, rows, and every number that the paper prints.

A cell is a row in a column, and a run for every seed. Its settings are those of the table, then of
the column, then of the row, then of the cell itself (`[rows.NAME.in.COLUMN]`); what comes later
wins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from fedloom.errors import BadInput, FedloomError, suggestion
from fedloom.expression import parse_one
from fedloom.files import read_toml
from fedloom.runs.config import RunConfig, Words

OF_WHO_RUNS = (
    *("out", "seed", "title", "engine", "workers", "ray_address", "memory", "device"),
    *("checkpoint_every", "history", "imports"),
)
"""Keys of a run that a table does not decide."""
OF_CELL = "cell:"
"""Before the column and row of the same table with whose model a run begins."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9._+=-]+")


class Printed(BaseModel):
    """A number of the paper, with its deviation where the paper prints one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    deviation: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _number_or_pair(cls, written: Any) -> Any:
        numbers = written if isinstance(written, list) else [written]
        plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
        if not plain or not 1 <= len(numbers) <= 2:
            raise ValueError("write a number, or [number, deviation]")
        return dict(zip(("value", "deviation"), numbers, strict=False))


class _WithSettings(BaseModel):
    """A part of the file whose further keys are keys of `RunConfig`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _further_keys_are_settings(cls, written: Any) -> Any:
        if not isinstance(written, dict):
            raise ValueError("write keys and values below it")
        own = {field.alias or name for name, field in cls.model_fields.items()} - {"settings"}
        settings = {key: value for key, value in written.items() if key not in own}
        return {**{key: written[key] for key in written if key in own}, "settings": settings}


class Tolerance(BaseModel):
    """By how many points ours may differ from the paper's number, and why by so many."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: float = Field(gt=0)
    why: Words


class Column(_WithSettings):
    """What a column adds to the settings, or the columns whose mean it is."""

    average_of: tuple[str, ...] = ()
    standin: Words | None = None
    """What stands in here for the paper's data or network."""
    tolerance: Tolerance | None = None


class Row(_WithSettings):
    """A method as the paper's table has it, with what only its runs have set."""

    label: Words | None = None
    method: Words | None = None
    absent: Words | None = None
    """Why a row that the paper prints cannot be run."""
    columns: tuple[str, ...] | None = None
    """The only columns the row has; None: all."""
    cells: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict, alias="in")
    """Column -> settings of that one cell."""

    @model_validator(mode="after")
    def _method_or_reason(self) -> Row:
        if (self.method is None) == (self.absent is None):
            raise ValueError("a row has either a method or `absent`, the reason why it has none")
        return self


@dataclass(frozen=True)
class Cell:
    """A row in a column: one run for every seed."""

    column: str
    row: str
    config: RunConfig

    @property
    def begins_with(self) -> tuple[str, str] | None:
        """Column and row of the cell whose model this one begins with, if it does."""
        return start_cell(self.config.model_dump())

    @property
    def digest(self) -> str:
        """Of the settings, so that a result of other ones is noticed; the rounds that were run are
        kept beside a result and do not count here."""
        settings = self.config.model_dump(exclude_defaults=True, exclude={"rounds", *OF_WHO_RUNS})
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def start_cell(settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """Column and row that `start = "cell:COLUMN/ROW"` names; None: it names no cell."""
    start = settings.get("start")
    if not isinstance(start, str) or not start.startswith(OF_CELL):
        return None
    column, _, row = start.removeprefix(OF_CELL).partition("/")
    return column, row


class PaperTable(BaseModel):
    """One table, or one figure that is a run, of a paper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    title: Words
    source: Words
    remark: Words | None = None
    standin: Words | None = None
    """What stands in for the paper's data or network, in all columns."""
    tolerance: Tolerance | None = None
    seeds: tuple[int, ...] = Field(min_length=1)
    partition_by_seed: bool = False
    """Every seed also draws a partition of its own."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    targets: Mapping[str, float] = Field(default_factory=dict)
    """Column -> accuracy in percent to which `rounds_to_target` counts."""
    columns: Mapping[str, Column] = Field(min_length=1)
    rows: Mapping[str, Row] = Field(min_length=1)
    printed: Mapping[str, Mapping[str, Mapping[str, Printed]]] = Field(default_factory=dict)
    """Quantity -> column -> row -> number."""
    remarks: Mapping[str, Mapping[str, Words]] = Field(default_factory=dict)
    """Column -> row -> what a reader should know of it, for instance what was tried where it
    differs from the paper."""

    @field_validator("columns", "rows")
    @classmethod
    def _names_are_folders(cls, named: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in named:
            if not _FOLDER_NAME.fullmatch(name) or not name.strip("."):
                raise ValueError(
                    f"the name {name!r} becomes a folder, so write it with letters, digits and"
                    " . _ + = - only"
                )
        return named

    @property
    def paper(self) -> str:
        """The folder: dbe, fedbr ..."""
        return self.path.absolute().parent.name

    @property
    def name(self) -> str:
        """The file: table1, figure4 ..."""
        return self.path.stem

    @property
    def id(self) -> str:
        """As the command takes it: fedpac/table1."""
        return f"{self.paper}/{self.name}"

    def label(self, row: str) -> str:
        """A row as the paper calls it."""
        return self.rows[row].label or row

    def has(self, column: str, row: str) -> bool:
        """Whether the row exists in the column."""
        columns = self.rows[row].columns
        return columns is None or column in columns

    def standin_of(self, column: str) -> str:
        """What stands in for the paper's data or network in a column; empty: nothing does."""
        parts = (column, *self.columns[column].average_of)
        notes = [self.standin, *(self.columns[part].standin for part in parts)]
        return "; ".join(dict.fromkeys(note for note in notes if note))

    def partition_seed(self, cell: Cell, seed: int) -> int:
        """Of the partition that a cell's run has with this seed."""
        return cell.config.partition_seed + (seed if self.partition_by_seed else 0)

    def tolerance_of(self, column: str) -> Tolerance | None:
        """The column's own, or else the table's."""
        return self.columns[column].tolerance or self.tolerance

    @property
    def run_columns(self) -> list[str]:
        """The columns that are runs, and no means of others."""
        return [name for name, column in self.columns.items() if not column.average_of]

    def settings_of(self, column: str, row: str) -> dict[str, Any]:
        """The keys of a cell's run, as written."""
        line = self.rows[row]
        return {
            **self.settings,
            **self.columns[column].settings,
            "method": line.method,
            **line.settings,
            **line.cells.get(column, {}),
        }

    def cell(self, column: str, row: str) -> Cell:
        """One cell, its settings checked."""
        try:
            return Cell(column, row, RunConfig.checked(self.settings_of(column, row)))
        except FedloomError as e:
            raise BadInput(f"{self.path}, row {row!r} in column {column!r}: {e}") from None

    def cells(
        self, columns: Iterable[str] | None = None, rows: Iterable[str] | None = None
    ) -> list[Cell]:
        """All cells that are runs, or those of some columns and rows, column by column."""
        wanted_columns = self.run_columns if columns is None else list(columns)
        wanted_rows = list(self.rows if rows is None else rows)
        return [
            self.cell(column, row)
            for column in wanted_columns
            for row in wanted_rows
            if self.has(column, row) and self.rows[row].method is not None
        ]


def read_table(path: Path) -> PaperTable:
    """The table of a file; the first thing that is wrong with it is one sentence."""
    table = _parsed(path)
    for problem in problems(table):
        raise BadInput(problem)
    return table


def check_file(path: Path) -> list[str]:
    """Everything that is wrong with a file, a sentence each."""
    try:
        return list(dict.fromkeys(problems(_parsed(path))))
    except FedloomError as e:
        return [str(e)]


def _parsed(path: Path) -> PaperTable:
    """The file as far as its own form goes."""
    written = read_toml(path, "the table", "`fedloom reproduce --list` names those there are")
    own = [name for name in PaperTable.model_fields if name != "path"]
    for key in written:
        if key not in own:
            raise BadInput(f"{path} has an unknown key {key!r}{suggestion(key, own)}")
    try:
        return PaperTable(path=path, **written)
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        raise BadInput(f"{path}, {place}: {reason[0].lower()}{reason[1:]}") from None


def problems(table: PaperTable) -> Iterator[str]:
    """What is wrong with the contents of a table, a sentence each."""
    yield from _unknown_names(table)
    yield from _misplaced_keys(table)
    for column in table.run_columns:
        for row, line in table.rows.items():
            if table.has(column, row) and line.method is not None:
                yield from _bad_cell(table, column, row)


def _unknown_names(table: PaperTable) -> Iterator[str]:
    """Columns and rows that are named and nowhere defined; columns that no row has."""
    for place, name, known in _mentioned_columns(table):
        if name not in known:
            yield f"{table.path}, {place}: there is no column {name!r}{suggestion(name, known)}"
    for quantity, by_column in table.printed.items():
        for column, by_row in by_column.items():
            yield from _misplaced_rows(table, f"printed.{quantity}.{column}", column, by_row)
    for column, of_rows in table.remarks.items():
        yield from _misplaced_rows(table, f"remarks.{column}", column, of_rows)
    for column in table.columns:
        if not any(table.has(column, row) for row in table.rows):
            yield (
                f"{table.path}, columns.{column}: no row has this column; add it to the `columns`"
                " of a row, or take it out"
            )


def _mentioned_columns(table: PaperTable) -> Iterator[tuple[str, str, list[str]]]:
    """(place, name of a column, the columns it may be) wherever a column is named."""
    every, runs = list(table.columns), table.run_columns
    yield from ((f"targets.{name}", name, every) for name in table.targets)
    for column, settings in table.columns.items():
        yield from ((f"columns.{column}.average_of", one, runs) for one in settings.average_of)
    for row, line in table.rows.items():
        yield from ((f"rows.{row}.columns", one, every) for one in line.columns or ())
        yield from ((f"rows.{row}.in", one, runs) for one in line.cells)
    for quantity, by_column in table.printed.items():
        yield from ((f"printed.{quantity}", one, every) for one in by_column)
    yield from (("remarks", one, every) for one in table.remarks)


def _misplaced_rows(
    table: PaperTable, place: str, column: str, rows: Iterable[str]
) -> Iterator[str]:
    """Numbers or remarks of no row, or of a row that does not have the column."""
    for row in rows:
        if row not in table.rows:
            near = suggestion(row, table.rows)
            yield f"{table.path}, {place}: there is no row {row!r}{near}"
        elif column in table.columns and not table.has(column, row):
            yield (
                f"{table.path}, {place}: row {row!r} has no column {column!r}; add it to"
                f" rows.{row}.columns, or take it out here"
            )


def _misplaced_keys(table: PaperTable) -> Iterator[str]:
    """Keys of a run that do not belong where they stand."""
    parts: list[tuple[str, Mapping[str, Any], bool]] = [("settings", table.settings, False)]
    for name, column in table.columns.items():
        parts.append((f"columns.{name}", column.settings, False))
        if column.average_of and column.settings:
            key = next(iter(column.settings))
            yield (
                f"{table.path}, columns.{name}: a column that is the mean of others is no run and"
                f" has no {key!r}; take it out"
            )
    for name, row in table.rows.items():
        parts.append((f"rows.{name}", row.settings, False))
        parts += [(f"rows.{name}.in.{column}", cell, True) for column, cell in row.cells.items()]
    for place, settings, may_have_method in parts:
        for key in settings:
            if key in OF_WHO_RUNS:
                yield (
                    f"{table.path}, {place}: {key!r} is for whoever runs the table and not for the"
                    " table; take it out"
                )
            elif key == "method" and not may_have_method:
                yield f"{table.path}, {place}: a method belongs to a row; write it there"
            elif key not in RunConfig.model_fields:
                near = suggestion(key, RunConfig.model_fields)
                yield f"{table.path}, {place}: a run has no key {key!r}{near}"


def _bad_cell(table: PaperTable, column: str, row: str) -> Iterator[str]:
    """What makes a cell no run, as far as that shows without its data."""
    from fedloom.data.partition.registry import partitioner
    from fedloom.data.split import splits
    from fedloom.methods import parse_method

    settings = table.settings_of(column, row)
    known = {k: v for k, v in settings.items() if k in RunConfig.model_fields}
    place = f"{table.path}, row {row!r} in column {column!r}"
    if (begin := start_cell(settings)) is not None and begin not in _before(table, column, row):
        yield (
            f"{place}: it begins with the cell {'/'.join(begin)}, which does not come before it;"
            " name an earlier column, or an earlier row of this one"
        )
    if "data" not in settings:
        yield f"{place}: no `data`; write it in [settings] or [columns.{column}]"
    try:
        config = RunConfig.checked(known)
        parse_method(config.method)
        partitioner(config.partition)
        splits.canonical(parse_one(config.split).name)
    except FedloomError as e:
        yield f"{place}: {e}"


def _before(table: PaperTable, column: str, row: str) -> list[tuple[str, str]]:
    """The cells that are run before this one."""
    order = [(c, r) for c in table.run_columns for r in table.rows if table.has(c, r)]
    return order[: order.index((column, row))]
