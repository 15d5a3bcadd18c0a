"""A user's own data: an `.npz` file, a folder of images, a CSV or parquet table."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np

from fedloom.core.fields import LENGTHS
from fedloom.data import roles, tables
from fedloom.data.images import picture_files, read_images
from fedloom.data.options import Columns, Options
from fedloom.data.roles import USUAL, source_of
from fedloom.data.source import Source
from fedloom.errors import BadInput

_HEAD = 100  # rows that show the columns of a table


def read(path: Path, scratch: Path, options: Options) -> Source:
    """The source in a file or folder, by its suffix; images are decoded into `scratch`."""
    suffix = path.suffix.lower()
    if path.is_dir() and (picture_files(path) or not tables.holds_tables(path)):
        return read_images(path, scratch, options).only(options.classes)
    if path.is_dir() or (suffix in tables.SUFFIXES and path.is_file()):
        with tables.opened(path) as table:
            return source_of(table, path.stem, options, scratch)
    if suffix == ".npz" and path.is_file():
        return read_npz(path, options).only(options.classes)
    raise BadInput(
        f"cannot tell what {path} holds; give a folder of images, or a file ending in "
        f"{', '.join(sorted(('.npz', *tables.SUFFIXES)))}"
    )


def input_columns(path: Path, label: str | None = None) -> tuple[str, ...]:
    """Names of a table's inputs, in their order, from its head alone; none where it has no
    columns."""
    suffix, columns = path.suffix.lower(), Columns(label=label)
    if path.is_dir() and not picture_files(path) and tables.holds_tables(path):
        with tables.opened(path) as table:
            return roles.input_columns(table, columns)
    if suffix not in tables.SUFFIXES or not path.is_file():
        return ()
    with tables.readable(str(path)):
        head = tables.from_object(_head(path))
    assert head is not None
    return roles.input_columns(head, columns)


def _head(path: Path) -> Any:
    """The first rows of a table, as a data frame."""
    if path.suffix.lower() == ".csv":
        import pandas as pd

        return pd.read_csv(path, nrows=_HEAD)
    from pyarrow import parquet

    batches = parquet.ParquetFile(path).iter_batches(_HEAD)
    return next(batches).to_pandas()


def read_npz(path: Path, options: Options, name: str | None = None) -> Source:
    """Arrays `x` and `y`, and where present `user` (or `client`), `domain`, `test`; the options'
    columns name other arrays for them. Without `x` all arrays that are none of these are inputs."""
    return source_of_arrays(read_arrays(path), path, options, name)


def source_of_arrays(
    arrays: Mapping[str, np.ndarray], path: Path, options: Options, name: str | None = None
) -> Source:
    """The source that arrays of an `.npz` file are."""
    columns = options.columns

    def needed(role: str, named: str | None, usual: str) -> np.ndarray:
        key = named or usual
        if key not in arrays:
            raise BadInput(
                f"{path} has no array {key!r}; it has: {', '.join(arrays) or 'none'}; write it "
                f"with numpy.savez(path, x=..., y=...), or name the array by {role}=... (--{role})"
            )
        return arrays[key]

    def optional(role: str, named: str | None, usual: Sequence[str]) -> np.ndarray | None:
        if named is not None:
            return needed(role, named, named)
        return next((arrays[key] for key in usual if key in arrays), None)

    label = columns.label or "y"
    names = columns.inputs or input_arrays(arrays, label, [f.name for f in options.fields])
    inputs = {name: needed("inputs", name, "x") for name in names}
    lengths = {n + LENGTHS: arrays[n + LENGTHS] for n in inputs if n + LENGTHS in arrays}
    several = len(inputs) > 1 or lengths or options.fields
    return Source.from_arrays(
        {**inputs, **lengths} if several else next(iter(inputs.values())),
        needed("label", columns.label, "y"),
        name=name or path.stem,
        class_names=options.class_names,
        targets=options.targets,
        official_test=arrays.get("test"),
        domain=optional("domain", columns.domain, USUAL.domain),
        user=optional("client", columns.client, USUAL.client),
        fields=options.fields,
        longest=options.longest if several else None,
    )


def input_arrays(
    arrays: Mapping[str, np.ndarray], label: str = "y", wanted: Sequence[str] = ()
) -> list[str]:
    """The names of an archive's inputs: those that are wanted, or `x`, or all arrays without
    another role where they are several or of unlike length."""
    if wanted or "x" in arrays:
        return [*wanted] or ["x"]
    roles = {label, "test", *USUAL.label, *USUAL.client, *USUAL.domain}
    of_lengths = {name for name in arrays if name.removesuffix(LENGTHS) in arrays.keys() - {name}}
    rest = [name for name in arrays if name not in roles | of_lengths]
    return rest if len(rest) > 1 or (rest and rest[0] + LENGTHS in arrays) else ["x"]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of an `.npz` file by its name."""
    try:
        needed, memory = _unpacked_bytes(path), _physical_memory()
        if needed > memory:
            raise MemoryError(f"its arrays take {needed} bytes, this machine has {memory}")
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as e:  # numpy, zipfile and zlib have errors of many kinds for damaged files
        raise BadInput(
            f"cannot read {path} ({tables.first_line(e)}); "
            "write it with numpy.savez(path, x=..., y=...)"
        ) from None


def _unpacked_bytes(path: Path) -> int:
    """What an archive says its members take, which is all that is read of them."""
    if not is_zipfile(path):
        return 0
    with ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


def _physical_memory() -> int:
    """Bytes; where the system does not tell, so many that nothing is refused."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
