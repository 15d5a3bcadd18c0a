"""Tables: CSV and parquet files, folders of parquet files, `datasets` and pandas objects."""

from __future__ import annotations

import glob
import logging
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.data.cache import cache_root, scratch_folder
from fedloom.data.source import code_labels, codes, is_missing
from fedloom.errors import BadInput, FedloomError, suggestion

SUFFIXES = (".csv", ".parquet")
_SAVED_BY_DATASETS = ("dataset_dict.json", "state.json")  # files of `save_to_disk`
_NUMBER = re.compile(r"u?int\d+|float\d+|double|bool")
_VALUE = 1  # bytes of the smallest value
_SHOWN = 30  # columns listed in a message

Holds = Literal["numbers", "lists", "images", "text", "other"]


@dataclass(frozen=True)
class Table:
    """The rows of a `datasets.Dataset`, and which of them are the published test set."""

    rows: Any
    where: str  # how messages call it
    test: np.ndarray | None = None
    folder: Path | None = None  # what relative paths of images start from

    @cached_property
    def columns(self) -> dict[str, None]:
        """The names, in order; a set that keeps it, because wide tables are asked for each name."""
        return dict.fromkeys(self.rows.column_names)

    @cached_property
    def features(self) -> Any:
        """What `datasets` knows of every column; asked for once, because it copies them all."""
        return self.rows.features

    def need(self, role: str, names: Sequence[str]) -> str:
        """The first of these columns that is present; an error lists the table's columns."""
        for name in names:
            if name in self.columns:
                return name
        shown = " or ".join(map(repr, names))
        raise BadInput(
            f"{self.where} has no {role} column {shown}; it has: {_listed(self.columns)}; "
            f"name it by {role}=... (--{role} on the command line){_nearest(names, self.columns)}"
        )

    def values(self, name: str) -> np.ndarray:
        """One column as an array of its own."""
        return next(self.each_values([name]))

    def each_values(self, names: Sequence[str]) -> Iterator[np.ndarray]:
        """Columns as arrays of their own, from one read: a read costs time for every column that
        the table has."""
        arrow = self.rows.select_columns(list(names)).with_format("arrow")[:]
        for column in arrow.columns:
            yield np.array(column.to_numpy())

    def names_in(self, name: str) -> tuple[str, ...] | None:
        """The names of a column's values, where the column is a `ClassLabel`."""
        names = getattr(self.features[name], "names", None)
        return None if names is None else tuple(names)

    def labels(
        self, name: str, class_names: Sequence[str] | None
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column's class codes and the names of all classes: the user's, or the column's own."""
        values, own_names = self.whole(name), self.names_in(name)
        if own_names is not None and class_names is not None:
            values = np.array(own_names)[values]
        return code_labels(values, class_names or own_names, self.where)

    def coded(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column's codes and names, as its `ClassLabel` numbers them where it is one."""
        values, names = self.whole(name), self.names_in(name)
        return codes(values) if names is None else code_labels(values, names, self.where)

    def numbered(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """The values of a column that occur, numbered in sorted order, and their names."""
        numbers, values = codes(self.whole(name))
        names = self.names_in(name)
        return numbers, values if names is None else tuple(names[int(v)] for v in values)

    def whole(self, name: str) -> np.ndarray:
        """A column without missing values; in a `ClassLabel` a number without a name is one."""
        values, names = self.values(name), self.names_in(name)
        missing = is_missing(values)
        if names is not None:
            missing |= (values < 0) | (values >= len(names))
        if missing.any():
            raise BadInput(
                f"column {name!r} of {self.where} is missing in {int(missing.sum())} of "
                f"{len(values)} rows; fill them or drop those rows"
            )
        return values

    def holds(self, name: str) -> Holds:
        """What the values of a column are."""
        import datasets

        feature = self.features[name]
        if isinstance(feature, datasets.Image):
            return "images"
        if isinstance(feature, dict):  # an image saved by other software than `datasets`
            return "images" if "bytes" in feature else "other"
        if not isinstance(feature, datasets.Value | datasets.ClassLabel):
            return "lists" if _lists_of_numbers(feature) else "other"
        if _NUMBER.fullmatch(feature.dtype):
            return "numbers"
        if "binary" in feature.dtype:
            return "images"
        return "text" if "string" in feature.dtype else "other"

    def described(self, name: str) -> str:
        """What the values of a column are, in words for a message."""
        holds = self.holds(name)
        return str(self.features[name]) if holds in ("other", "lists") else holds

    def lists(self, name: str) -> list[np.ndarray]:
        """The rows of a column of lists."""
        rows = self.rows.select_columns([name]).with_format("arrow")[:].column(name).to_pylist()
        if missing := [i for i, row in enumerate(rows) if row is None]:
            raise BadInput(
                f"column {name!r} of {self.where} is missing in row {missing[0]}; drop such rows"
            )
        try:
            return [np.asarray(row) for row in rows]
        except ValueError:
            raise BadInput(
                f"column {name!r} of {self.where} has lists of unlike lists; a row is [T] or [T, C]"
            ) from None

    def take(self, rows: np.ndarray) -> Table:
        """Some of the rows."""
        test = None if self.test is None else self.test[rows]
        return replace(self, rows=self.rows.select(rows), test=test)


def _lists_of_numbers(feature: Any) -> bool:
    """Is it lists, or lists in lists, of numbers?"""
    import datasets

    inner = feature
    while isinstance(inner, datasets.List | datasets.LargeList):
        inner = inner.feature
    return inner is not feature and bool(_NUMBER.fullmatch(getattr(inner, "dtype", "") or ""))


# ---------------------------------------------------------------------- opening


@contextmanager
def opened(path: Path) -> Iterator[Table]:
    """The table in a file, or in a folder with the files of a `datasets` repository; its rows may
    be in temporary files, which are gone afterwards."""
    with scratch_folder() as scratch, offline():
        yield _open(path, scratch)


def _open(path: Path, scratch: Path) -> Table:
    with readable(str(path)):
        if path.is_dir():
            return joined(read_folder(path, scratch), str(path), folder=path)
        if path.suffix.lower() == ".csv":
            return Table(_read_csv(path), str(path), folder=path.parent)
        return Table(_read_parquet(path, scratch), str(path), folder=path.parent)


def holds_tables(folder: Path) -> bool:
    """Whether a folder has files that `read_folder` can read."""
    if any((folder / name).is_file() for name in _SAVED_BY_DATASETS):
        return True
    return any(f.suffix.lower() == ".parquet" and f.is_file() for f in folder.rglob("*"))


def read_folder(folder: Path, scratch: Path) -> Any:
    """The `datasets.DatasetDict` or `Dataset` in a folder."""
    import datasets

    if any((folder / name).is_file() for name in _SAVED_BY_DATASETS):
        return datasets.load_from_disk(str(folder))
    _check_disk([f for f in folder.rglob("*.parquet") if f.is_file()], scratch)
    return datasets.load_dataset(str(_without_patterns(folder, scratch)), cache_dir=str(scratch))


def _without_patterns(folder: Path, scratch: Path) -> Path:
    """The folder under a name without `[`, `*` and `?`, which `datasets` takes for a pattern: of
    `p[1]` it would read the folder `p1`. It resolves links to folders, but not links to files."""
    if not glob.has_magic(str(folder)):
        return folder
    linked = scratch / "folder"
    for file in (f for f in folder.rglob("*") if f.is_file()):
        link = linked / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.absolute())
    return linked


def from_object(data: Any) -> Table | None:
    """The table of a pandas or `datasets` object; None for any other object.

    Neither library is imported here: a program that has such an object has imported it.
    """
    pandas, datasets = sys.modules.get("pandas"), sys.modules.get("datasets")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return Table(_from_frame(data, "the data frame"), "the data frame")
    if datasets is None:
        return None
    if isinstance(data, datasets.IterableDataset | datasets.IterableDatasetDict):
        raise BadInput(
            "an iterable data set cannot be divided over clients, because its rows are only known "
            "when it has been read; load it without streaming=True"
        )
    if isinstance(data, datasets.Dataset | datasets.DatasetDict):
        return joined(data, "the data set")
    return None


def joined(
    splits: Any, where: str, test: Sequence[str] = ("test",), folder: Path | None = None
) -> Table:
    """All splits of a `DatasetDict` as one table, the published test splits last."""
    import datasets

    if isinstance(splits, datasets.Dataset):
        return Table(splits, where, folder=folder)
    order = sorted(splits, key=lambda split: (split in test, split != "train", split))
    with readable(where):
        rows = datasets.concatenate_datasets([splits[split] for split in order])
    mask = np.concatenate([np.full(len(splits[split]), split in test) for split in order])
    return Table(rows, where, mask if mask.any() and not mask.all() else None, folder)


def _read_csv(path: Path) -> Any:
    import pandas as pd

    # In one piece, so that a column's type follows from all of its values, not the first few.
    frame = pd.read_csv(path, low_memory=False)
    header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna()
    if twice := header[header.duplicated()].tolist():  # pandas would make another column of it
        raise BadInput(f"{path} has two columns {twice[0]!r}; rename or drop one")
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took the first fields for an index
        raise BadInput(f"the rows of {path} have more fields than its first line has names")
    if len(frame.columns) == 1 and (marks := re.findall(r"[;\t|]", str(frame.columns[0]))):
        raise BadInput(
            f"the columns of {path} are separated by {marks[0]!r}; save it with commas between them"
        )
    return _from_frame(frame, str(path))


def _from_frame(frame: Any, where: str) -> Any:
    import datasets

    with readable(where):
        return datasets.Dataset.from_pandas(frame, preserve_index=False)


def _read_parquet(path: Path, scratch: Path) -> Any:
    import datasets
    import pandas as pd

    if not len(pd.read_parquet(path, columns=[])):  # `datasets` cannot open a table without rows
        raise BadInput(f"{path} has no rows")
    _check_disk([path], scratch)
    return datasets.Dataset.from_parquet(glob.escape(str(path)), cache_dir=str(scratch))


def _check_disk(files: Iterable[Path], scratch: Path) -> None:
    """Refuse tables that unpack to more than the disk holds: a file of a few kilobytes may say that
    one value is repeated a billion times."""
    from pyarrow import parquet

    about = [parquet.read_metadata(file) for file in files]
    needed = sum(_VALUE * each.num_rows * each.num_columns for each in about)
    if needed > (free := shutil.disk_usage(scratch).free):
        raise BadInput(
            f"the table takes at least {needed / 1e9:.1f} GB, and the cache folder {cache_root()}"
            f" has {free / 1e9:.1f} GB left; use fewer rows, or another folder by FEDLOOM_CACHE"
        )


@contextmanager
def readable(where: str) -> Iterator[None]:
    """What the libraries raise for a table they cannot read, as one sentence."""
    try:
        yield
    except FedloomError:
        raise
    except Exception as e:  # pandas, pyarrow and datasets have errors of many kinds
        cause = e.__cause__ or e
        advice = "; save it as UTF-8" if isinstance(cause, UnicodeDecodeError) else ""
        raise BadInput(f"cannot read the table {where}: {first_line(e)}{advice}") from None


def first_line(error: Exception) -> str:
    """What a library's error says, without what it wraps around it."""
    cause = error.__cause__ or error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


@contextmanager
def offline() -> Iterator[None]:
    """Keep `datasets` from the network and the terminal: what is read here is on this disk."""
    import datasets
    from huggingface_hub import constants

    switches = (datasets.config, "HF_HUB_OFFLINE"), (constants, "HF_HUB_OFFLINE")
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    before = [getattr(module, name) for module, name in switches]
    levels = [logger.level for logger in loggers]
    bars = datasets.is_progress_bar_enabled()
    try:
        for module, name in switches:
            setattr(module, name, True)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        datasets.disable_progress_bars()
        yield
    finally:
        for (module, name), value in zip(switches, before, strict=True):
            setattr(module, name, value)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()


def _listed(columns: Collection[str]) -> str:
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return f"{', '.join(list(columns)[:_SHOWN])}{more}"


def _nearest(names: Sequence[str], columns: Iterable[str]) -> str:
    """'; did you mean ...?', or nothing: all columns are listed already."""
    hint = suggestion(names[0], columns)
    return hint if hint.endswith("?") else ""
