"""Files a kill cannot tear and a stranger's link cannot divert, JSON that is always valid, TOML
that says what is wrong with it."""

from __future__ import annotations

import math
import os
import re
import secrets
import stat
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from json import dumps, loads
from pathlib import Path
from typing import Any, BinaryIO

from fedloom.errors import BadInput, DiskError

MOST_TEXT = 1 << 30
"""Bytes of the largest JSON, JSON lines or TOML file that is read."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_DAY = 86400.0


def file_name(label: str) -> str:
    """A readable name for a file or folder about something.

    >>> file_name("fedavg + proximal(mu=0.01)")
    'fedavg-proximal-mu-0.01'
    """
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder (new, renamed, removed) survive a power cut."""
    if sys.platform == "win32":
        return  # Windows cannot open a folder, and needs no such call
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill at any instant, sees the old or the new one.

    A link of the file's name is replaced, not followed; nor can a link lie in wait under the
    temporary name, which is random and must not exist.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY, 0o666)
    try:
        with open(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _remove_leftovers(path)
    sync_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    """Temporary files of this name that kills left behind; younger ones may be another writer's."""
    leftover = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}\.tmp")
    for name in filter(leftover.fullmatch, os.listdir(path.parent)):
        with suppress(OSError):
            if time.time() - os.lstat(path.parent / name).st_mtime > _DAY:
                os.unlink(path.parent / name)


def open_to_append(path: Path, mode: int = 0o666) -> BinaryIO:
    """A regular file opened for appending, made if missing, with these permissions less those that
    the user's mask takes away; a link is refused, not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINK | _NO_WAIT | _BINARY
    handle = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return open(handle, "ab")


def read_regular(path: Path, most: int = MOST_TEXT) -> bytes:
    """The content of a regular file: a pipe or device, which may never end, is an `OSError`, and so
    is a file of more than `most` bytes."""
    handle = os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_size > most:
        os.close(handle)
        is_file = stat.S_ISREG(about.st_mode)
        too_long = f"it has {about.st_size} bytes, more than {most}"
        raise OSError(0, too_long if is_file else "it is not a regular file")
    with open(handle, "rb") as file:
        return file.read(about.st_size)


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, in which every text that is no JSON, however deeply nested, is a ValueError."""
    try:
        return loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: Path, value: object) -> None:
    """`write_atomic` of a value as indented JSON, made valid by `jsonable`."""
    write_atomic(path, dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


_AS_IT_IS = frozenset({str, int, bool, type(None)})


def jsonable(value: Any) -> Any:
    """The value in JSON's types: NaN and infinities as None, scalars of torch and numpy as numbers.

    >>> import torch
    >>> jsonable({"loss": float("nan"), "shape": (2, torch.tensor(3))})
    {'loss': None, 'shape': [2, 3]}
    """
    if type(value) in _AS_IT_IS:  # most values are, and asking for all the rest takes long
        return value
    if isinstance(value, Mapping):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):  # of torch and numpy, which need not be imported here
        return jsonable(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_toml(path: Path, what: str = "the configuration", hint: str = "") -> dict[str, Any]:
    """A TOML file, or one sentence on why not; `hint` says what to do where it is missing."""
    try:
        return tomllib.loads(read_regular(path).decode("utf-8").replace("\r\n", "\n"))
    except OSError as e:
        more = f"; {hint}" if hint else ""
        raise BadInput(f"cannot read {what} {path} ({e.strerror}){more}") from None
    except (ValueError, RecursionError) as e:  # not UTF-8, no TOML, a number of 5,000 digits
        raise BadInput(f"{path} is not valid TOML ({e})") from None


@contextmanager
def naming_disk(path: Path) -> Iterator[None]:
    """A disk that refuses what is written inside becomes a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"cannot write {path} ({error.strerror or error}); what was saved before is intact: see"
            " to the disk"
        ) from None
