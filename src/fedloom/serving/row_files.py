"""Rows to predict, from a user's files: images, arrays, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.fields import LENGTHS
from fedloom.data import tables
from fedloom.data.images import is_picture, picture_files, pictures_as
from fedloom.data.local import read_arrays
from fedloom.data.roles import USUAL, numbers
from fedloom.errors import BadInput
from fedloom.serving.card import Card

TEXT = ".txt"
"""Suffix of a file with a text in each line."""


@dataclass(frozen=True)
class NamedRows:
    """Raw rows [n, ...], or several inputs by name, and what each row is called."""

    x: Any
    names: Sequence[str]
    called: str
    """What a name is of: a file or a row."""


def read_rows(path: str | Path, card: Card) -> NamedRows:
    """Rows for a model from a folder of images or an image, a `.npy`, `.npz`, CSV or parquet file,
    or a `.txt` file with a text in each line."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}; give rows to predict")
    suffix = path.suffix.lower()
    if suffix == ".npz" and card.fields:
        inputs = _inputs(path, card)
        return NamedRows(inputs, _numbers(len(next(iter(inputs.values())))), "row")
    if suffix in (".npy", ".npz"):
        x = _array(path)
        if not x.ndim:
            raise BadInput(f"{path} holds a single number; give rows [n, ...]")
        return NamedRows(x, _numbers(len(x)), "row")
    files = picture_files(path) if path.is_dir() else [path] if is_picture(path) else []
    if files:
        return _images(path if path.is_dir() else path.parent, files, card)
    if path.is_dir() and card.kind == "image":
        raise BadInput(f"there is no image in {path}; give a folder of images")
    if suffix == TEXT:
        return _lines(path, card)
    if path.is_dir() or suffix in tables.SUFFIXES:
        return _table(path, card)
    raise BadInput(
        f"cannot tell what {path} holds; give images, or a file ending in .npy, .npz,"
        f" {TEXT}, {', '.join(sorted(tables.SUFFIXES))}"
    )


def _inputs(path: Path, card: Card) -> dict[str, np.ndarray]:
    """The arrays of several inputs by their names; lengths beside those of unlike length."""
    arrays = read_arrays(path)
    names = [field.name for field in card.fields]
    wanted = [n for name in names for n in (name, name + LENGTHS) if n in arrays]
    if missing := [name for name in names if name not in arrays]:
        raise BadInput(
            f"{path} has no array {missing[0]!r}; the model takes: {', '.join(names)}, and it has:"
            f" {', '.join(arrays) or 'none'}"
        )
    return {name: arrays[name] for name in wanted}


def _array(path: Path) -> np.ndarray:
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        if "x" not in arrays:
            raise BadInput(f"{path} has no array 'x'; it has: {', '.join(arrays) or 'none'}")
        return arrays["x"]
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except Exception as e:  # numpy has errors of many kinds for damaged files
        reason = tables.first_line(e)
        raise BadInput(
            f"cannot read {path} ({reason}); write it with numpy.save(path, rows)"
        ) from None
    return array


def _images(root: Path, files: Sequence[Path], card: Card) -> NamedRows:
    outputs = card.encoder is not None and not card.encoded
    if card.kind != "image" or outputs or card.dtype != "uint8":
        what = f"what {card.encoder} makes of images" if outputs else f"{card.kind} rows"
        raise BadInput(f"the model takes {what} ({card.dtype}) and no image files; give .npy")
    names = [str(file.relative_to(root)) for file in files]
    return NamedRows(pictures_as(files, tuple(card.shape)), names, "file")


def _lines(path: Path, card: Card) -> NamedRows:
    if card.kind != "text":
        raise BadInput(f"the model takes {card.kind} rows and no texts; give another kind of file")
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(f"cannot read {path} ({tables.first_line(e)}); write it in UTF-8") from None
    return NamedRows(texts, _numbers(len(texts)), "row")


def _texts(path: Path, card: Card) -> NamedRows:
    """The column of a table that the model was trained on, or the only one that is text."""
    with tables.opened(path) as table:
        columns = card.columns or [c for c in table.columns if table.holds(c) == "text"]
        if len(columns) > 1:
            columns = [name for name in columns if name not in USUAL.label]
        if len(columns) != 1 or columns[0] not in table.columns:
            wanted = repr(card.columns[0]) if card.columns else "of text that is the only one"
            raise BadInput(
                f"{path} has no column {wanted}; it has: {', '.join(table.columns)}. Give a table"
                f" with that column, or a {TEXT} file with a text in each line"
            )
        texts = [str(text) for text in table.whole(columns[0]).tolist()]
    return NamedRows(texts, _numbers(len(texts)), "row")


def _table(path: Path, card: Card) -> NamedRows:
    if card.kind == "text":
        return _texts(path, card)
    if card.kind != "table":
        instead = "an .npz file with its inputs" if card.fields else "a .npy file"
        raise BadInput(f"the model takes {card.kind} rows and no table; give {instead}")
    with tables.opened(path) as table:
        width = card.shape[0]
        columns = card.columns or _features(table, width)
        if missing := [name for name in columns if name not in table.columns]:
            raise BadInput(f"{path} lacks the column {missing[0]!r}, which the model reads")
        if words := [name for name in columns if table.holds(name) != "numbers"]:
            raise BadInput(
                f"column {words[0]!r} of {path} holds {table.described(words[0])}, and the model"
                " reads numbers; encode them as in its training"
            )
        x = numbers(table, columns)
    return NamedRows(x, _numbers(len(x)), "row")


def _features(table: tables.Table, width: int) -> list[str]:
    """All columns but those that are usually no input."""
    others = {*USUAL.label, *USUAL.client, *USUAL.domain}
    columns = [name for name in table.columns if name not in others]
    if len(columns) != width:
        raise BadInput(
            f"{table.where} has {len(columns)} columns of numbers, and the model reads {width}; its"
            " columns have no names, so give just these, in the order of its training"
        )
    return columns


def _numbers(n: int) -> list[str]:
    return list(map(str, range(n)))
