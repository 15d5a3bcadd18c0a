"""A user's own data: an `.npz` file, a folder of images, a CSV or parquet table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedloom.data import tables
from fedloom.data.images import picture_files, read_images
from fedloom.data.options import Options
from fedloom.data.roles import USUAL, source_of
from fedloom.data.source import Source
from fedloom.errors import BadInput


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


def read_npz(path: Path, options: Options, name: str | None = None) -> Source:
    """Arrays `x` and `y`, and where present `user` (or `client`), `domain`, `test`; the options'
    columns name other arrays for them."""
    arrays = _arrays(path)
    columns = options.columns
    if len(columns.inputs) > 1:
        raise BadInput(f"the input in {path} is one array; name a single one by inputs=...")

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

    return Source.from_arrays(
        needed("inputs", next(iter(columns.inputs), None), "x"),
        needed("label", columns.label, "y"),
        name=name or path.stem,
        class_names=options.class_names,
        official_test=arrays.get("test"),
        domain=optional("domain", columns.domain, USUAL.domain),
        user=optional("client", columns.client, USUAL.client),
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except Exception as e:  # numpy, zipfile and zlib have errors of many kinds for damaged files
        raise BadInput(
            f"cannot read {path} ({tables.first_line(e)}); "
            "write it with numpy.savez(path, x=..., y=...)"
        ) from None
