"""The folder of decoded data sets: one subfolder of `.npy` files and a `meta.json` per data set.

A folder appears by one rename, so a reader never sees half of one; of two processes that decode the
same data, the slower one discards its copy. Folders are readable by their owner only, since they
hold a copy of the user's data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fedloom.errors import BadInput

FORMAT = 3  # part of every key: raise it when decoding or the layout changes
META = "meta.json"


def cache_root() -> Path:
    """`FEDLOOM_CACHE`, or `~/.cache/fedloom`."""
    return Path(os.environ.get("FEDLOOM_CACHE") or "~/.cache/fedloom").expanduser().resolve()


def entry(name: str, *key: Any) -> Path:
    """The folder of data set `name` under a key of plain values; it need not exist yet."""
    text = json.dumps([FORMAT, *key], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return cache_root() / f"{re.sub(r'[^A-Za-z0-9_]+', '_', name)}-{digest}"


def stamps(path: Path) -> list[tuple[str, int, int]]:
    """Path, size and modification time of a file, or of every file below a folder."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [(str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder on the cache's disk, gone afterwards unless it was renamed."""
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".tmp-", dir=cache_root()))
    except OSError as e:
        raise BadInput(
            f"cannot write to the cache folder {cache_root()} ({e.strerror}); "
            "name another by the environment variable FEDLOOM_CACHE"
        ) from None
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def publish(scratch: Path, folder: Path) -> None:
    """Let a finished scratch folder appear as `folder`, unless another process was first."""
    try:
        os.rename(scratch, folder)
    except OSError:
        if not folder.is_dir():
            raise


def write(folder: Path, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Save arrays and meta; an array that is already a file of the folder is only flushed."""
    for name, array in arrays.items():
        file = folder / f"{name}.npy"
        if is_file_of(array, file):
            array.flush()
        else:
            file.unlink(missing_ok=True)  # another array may still map the old file
            np.save(file, array, allow_pickle=False)
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def read_meta(folder: Path) -> dict[str, Any]:
    """What `write` stored beside the arrays."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise damaged(folder, META) from None
    return meta


def read_array(folder: Path, name: str) -> np.ndarray:
    """One array, memory-mapped and read-only."""
    try:
        array: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise damaged(folder, f"{name}.npy") from None
    return array


def damaged(folder: Path, file: str) -> BadInput:
    """The error for a cache folder that lost or cut off a file."""
    return BadInput(f"{file} in the cache folder {folder} cannot be read; delete that folder")


def is_file_of(array: np.ndarray, file: Path) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether an array is the whole memory map of `file`: a view of a map has the map as base."""
    return (
        isinstance(array, np.memmap)
        and not isinstance(array.base, np.ndarray)
        and array.filename is not None
        and Path(array.filename).resolve() == file.resolve()
    )
