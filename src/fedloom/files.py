"""Files a kill cannot tear, JSON that is always valid, TOML that says what is wrong with it."""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Any

from fedloom.errors import BadInput


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

    One writer at a time: the temporary name is fixed, so that kills leave no heap of leftovers.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """`write_atomic` of a value as indented JSON, made valid by `jsonable`."""
    write_atomic(path, dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """The value in JSON's types: NaN and infinities as None, scalars of torch and numpy as numbers.

    >>> import torch
    >>> jsonable({"loss": float("nan"), "shape": (2, torch.tensor(3))})
    {'loss': None, 'shape': [2, 3]}
    """
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
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        more = f"; {hint}" if hint else ""
        raise BadInput(f"cannot read {what} {path} ({e.strerror}){more}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path} is not valid TOML ({e})") from None
