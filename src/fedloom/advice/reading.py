"""Data as far as it can be read, and everything in it that the door to data refuses.

`load` stops at the first fault, which is right for a run. Whoever has to mend the data wants to
know all of them, and how the rest looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data import Source, tables
from fedloom.data.cache import scratch_folder
from fedloom.data.images import check_picture, picture_files, read_images
from fedloom.data.load import path_of
from fedloom.data.local import read_arrays, source_of_arrays
from fedloom.data.options import Columns, Options
from fedloom.data.partition.draw import Ints
from fedloom.data.roles import USUAL, Roles, pictures_of, roles_of, source_of
from fedloom.data.source import is_missing
from fedloom.data.tables import Table
from fedloom.errors import BadInput, FedloomError
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import task_targets, undivided

NOT_NAMED = "of nobody"
"""Whose a row is that lacks the name of its client."""


@dataclass(frozen=True)
class Unreadable:
    """A file, or an image in a row of a table, that cannot be decoded."""

    name: str
    why: str


@dataclass(frozen=True)
class Missing:
    """Values that a column lacks, or that are infinite, in the rows of one client."""

    column: str
    client: str
    """Empty where the data does not say who holds a row."""
    rows: int


@dataclass(frozen=True)
class Reading:
    """What could be read, and what not."""

    source: Source | None
    """The rows without fault; None where nothing can be read."""
    problems: tuple[str, ...] = ()
    """What a run would refuse, in sentences."""
    unreadable: tuple[Unreadable, ...] = ()
    missing: tuple[Missing, ...] = ()
    left_out: int = 0
    """Rows with a fault."""
    kept: Ints | None = None
    """Which rows of the file the source has; None: all of them."""


def read(config: RunConfig, data: Any) -> Reading:
    """The configured data, or an object in its place."""
    try:
        return Reading(undivided(config, data))
    except FedloomError as refusal:
        reading = _faults(config, data)
        if reading is None:
            return Reading(None, (str(refusal),))
        no_fault = not (reading.problems or reading.unreadable or reading.missing)
        return replace(reading, problems=(str(refusal),)) if no_fault else reading


def groups(config: RunConfig, data: Any, name: str, kept: Ints | None) -> np.ndarray:
    """The values of a column, of the rows of a reading."""
    path = path_of(data)
    if path is not None and path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        if name not in arrays:
            raise BadInput(f"{path} has no array {name!r} to group by; it has: {', '.join(arrays)}")
        values = arrays[name]
    else:
        with _table(data, path) as table:
            if table is None:
                raise BadInput(f"group = {name!r} names a column, and {data} has no columns")
            values = table.values(table.need("group", (name,)))
    return values if kept is None else values[kept]


def row_names(data: Any) -> Callable[[int], str]:
    """What a row is called in a sentence: its file where it is one, else its number from 0."""
    path = path_of(data)
    files = picture_files(path) if path is not None and path.is_dir() else []
    if path is None or not files:
        return lambda row: f"row {row}"
    return lambda row: str(files[row].relative_to(path))


# ------------------------------------------------------------------ by the kind of data


def _faults(config: RunConfig, data: Any) -> Reading | None:
    """Every fault of the data; None where it is of a kind in which none can be left out."""
    options = Options(
        image_size=config.image_size,
        columns=Columns.named(config.label, config.client, config.domain, config.inputs or ()),
        targets=task_targets(config),
    )
    path = path_of(data)
    try:
        if path is not None and path.is_dir() and picture_files(path):
            return _images(path, options)
        if path is not None and path.suffix.lower() == ".npz":
            return _arrays(path, options)
        with _table(data, path) as table:
            return None if table is None else _rows(table, _name(path), options)
    except FedloomError:
        return None  # a fault of the whole, of which the door has spoken


def _name(path: Path | None) -> str:
    return "table" if path is None else path.stem


@contextmanager
def _table(data: Any, path: Path | None) -> Iterator[Table | None]:
    """The table of an object, of a file or of a folder."""
    if path is None:
        yield None if isinstance(data, str) else tables.from_object(data)
    elif path.suffix.lower() in tables.SUFFIXES or (path.is_dir() and tables.holds_tables(path)):
        with tables.opened(path) as table:
            yield table
    else:
        yield None


def _images(folder: Path, options: Options) -> Reading:
    """A folder of images without those that cannot be decoded."""
    files = picture_files(folder)
    unreadable = tuple(_undecodable((str(f.relative_to(folder)), f) for f in files))
    names = {one.name for one in unreadable}
    sound = [i for i, file in enumerate(files) if str(file.relative_to(folder)) not in names]
    if not sound:
        return Reading(None, (), unreadable, left_out=len(unreadable))
    with scratch_folder() as links, scratch_folder() as scratch:
        for i in sound:
            link = links / files[i].relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(files[i].absolute())
        source = read_images(links, scratch, options, folder.name).memory_mapped()
    return Reading(source, (), unreadable, left_out=len(unreadable), kept=np.array(sound))


def _undecodable(pictures: Iterable[tuple[str, Any]]) -> Iterator[Unreadable]:
    for name, picture in pictures:
        try:
            check_picture(picture)
        except BadInput as e:
            yield Unreadable(name, str(e))


def _arrays(path: Path, options: Options) -> Reading:
    """The arrays of a file without rows that have values which are not finite."""
    arrays = read_arrays(path)
    x = arrays.get(next(iter(options.columns.inputs), "x"))
    y = arrays.get(options.columns.label or "y")
    if x is None or y is None or not x.ndim or not y.ndim or len(x) != len(y):
        raise BadInput(f"{path} has no inputs and targets of equal length")
    keys = (options.columns.client, *USUAL.client)
    client = next((arrays[key] for key in keys if key is not None and key in arrays), None)
    holders = None if client is None or len(client) != len(x) else client.astype(str)
    bad = _not_finite(x)
    columns: dict[str, np.ndarray] = {"x": _any_in_row(bad)}
    if x.ndim == 2:
        columns = {f"column {i}": bad[:, i] for i in np.flatnonzero(bad.any(axis=0))}
    columns["y"] = _any_in_row(_not_finite(y))
    faulty = np.logical_or.reduce(list(columns.values()))
    kept = np.flatnonzero(~faulty)
    some = {key: array[kept] for key, array in arrays.items() if len(array) == len(x)}
    source, problems = _built(lambda: source_of_arrays(some, path, options))
    return Reading(source, problems, (), _missing(columns, holders), int(faulty.sum()), kept)


def _not_finite(values: np.ndarray) -> np.ndarray:
    missing: np.ndarray = is_missing(values)
    if values.dtype.kind == "f":
        missing = np.asarray(missing | np.isinf(values))
    return missing


def _any_in_row(mask: np.ndarray) -> np.ndarray:
    return np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def _rows(table: Table, name: str, options: Options) -> Reading:
    """A table without rows that lack a value, or whose image cannot be decoded."""
    roles = roles_of(table, options.columns)
    others = [role for role in (roles.client, roles.domain) if role is not None]
    columns: dict[str, np.ndarray] = {}
    unreadable: list[Unreadable] = []
    faulty = np.zeros(len(table.rows), bool)
    for column in (*roles.labels, *others, *roles.inputs):
        if table.holds(column) == "images":
            undecodable = list(_pictures(table, column))
            faulty[[row for row, _ in undecodable]] = True
            unreadable += [one for _, one in undecodable]
        else:
            columns[column] = _not_finite(table.values(column))
            faulty |= columns[column]
    holders = _holders(table, roles)
    kept = np.flatnonzero(~faulty)
    missing = _missing(columns, holders)
    if not len(kept):
        return Reading(None, (), tuple(unreadable), missing, int(faulty.sum()), kept)
    with scratch_folder() as scratch:
        source, problems = _built(
            lambda: source_of(table.take(kept), name, options, scratch).memory_mapped()
        )
    return Reading(source, problems, tuple(unreadable), missing, int(faulty.sum()), kept)


def _pictures(table: Table, column: str) -> Iterator[tuple[int, Unreadable]]:
    for row, stored in enumerate(pictures_of(table, column)):
        try:
            check_picture(stored())
        except BadInput as e:
            yield row, Unreadable(f"row {row}", str(e))


def _holders(table: Table, roles: Roles) -> np.ndarray | None:
    """Who holds each row, by name."""
    column = roles.client or roles.domain
    if column is None:
        return None
    values, names = table.values(column), table.names_in(column)
    lacking = is_missing(values)
    texts = [
        NOT_NAMED if gone else str(value if names is None else names[int(value)])
        for value, gone in zip(values.tolist(), lacking.tolist(), strict=True)
    ]
    return np.array(texts)


def _missing(columns: Mapping[str, np.ndarray], holders: np.ndarray | None) -> tuple[Missing, ...]:
    counted: list[Missing] = []
    for column, mask in columns.items():
        if not mask.any():
            continue
        if holders is None:
            counted.append(Missing(column, "", int(mask.sum())))
            continue
        names, counts = np.unique(holders[mask], return_counts=True)
        counted += [Missing(column, str(n), int(c)) for n, c in zip(names, counts, strict=True)]
    return tuple(counted)


def _built(build: Callable[[], Source]) -> tuple[Source | None, tuple[str, ...]]:
    """A source, or why even the rows without fault are none."""
    try:
        return build(), ()
    except FedloomError as e:
        return None, (str(e),)


def named(things: Sequence[str], most: int = 8) -> str:
    """A few of many by name.

    >>> named(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return f"{', '.join(things[:most])}{more}"
