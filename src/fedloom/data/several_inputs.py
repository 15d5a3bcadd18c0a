"""Several inputs and rows of unlike length, from a user's arrays to flat rows and back to words.

What a user may give: a dictionary of inputs by name, a tuple of inputs, or a list of rows of unlike
length. An input is an array of all rows, a list of rows of unlike length, or an array of rows that
are filled up already, with an array `NAME_lengths` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any

import numpy as np

from fedloom.core.fields import LENGTHS, MOST_WHOLE, Field, FieldKind, Fields, placed, width
from fedloom.data.arrays import as_array, inputs_of_kind
from fedloom.errors import BadInput, UnknownName

Kinds = FieldKind | Mapping[str, FieldKind] | None
"""Of a single input, or of some by name; None: what they look like."""
Longest = int | Mapping[str, int] | None
"""Positions that a row may have at most, of all inputs of unlike length or of some by name."""


def several(x: Any, rows: int) -> bool:
    """Are these inputs no single array: inputs by name, a tuple of them, or rows of unlike length?

    A tuple of as many rows as there are targets is one array, as a list of rows is.

    >>> several({"a": [[1.0]]}, 1), several([[1.0], [2.0, 3.0]], 2), several([[1.0], [2.0]], 2)
    (True, True, False)
    """
    if isinstance(x, Mapping):
        return True
    if isinstance(x := _rows_or_inputs(x, rows), tuple):
        return all(hasattr(each, "__len__") and len(each) == rows for each in x)
    return _is_unlike(x)


def _rows_or_inputs(x: Any, rows: int) -> Any:
    """A tuple stands for several inputs, a list for rows."""
    return list(x) if isinstance(x, tuple) and len(x) == rows else x


@dataclass(frozen=True)
class _Input:
    """One input of all rows: [n, ...], and how long each row is where they are of unlike length."""

    field: Field
    rows: np.ndarray
    lengths: np.ndarray | None = None


def flat(
    x: Any,
    name: str,
    kinds: Kinds = None,
    longest: Longest = None,
    fields: Fields = (),
    targets: int | None = None,
    lists_unlike: bool = False,
) -> tuple[Fields, np.ndarray]:
    """What the inputs are, and all rows as float32 [n, width].

    With `fields` the inputs must be just these; shorter rows are filled up, longer ones are cut.
    Errors call the data `name`. `targets` is the number of rows, where it is known. With
    `lists_unlike` a list is an input of unlike length also where its rows happen to be alike.
    """
    x = x if targets is None else _rows_or_inputs(x, targets)
    wanted = {field.name: field for field in fields}
    raw, lengths = _by_name(x, name, wanted)
    inputs: list[_Input] = []
    for key, values in raw.items():
        kind = kinds.get(key) if isinstance(kinds, Mapping) else kinds
        bound = longest.get(key) if isinstance(longest, Mapping) else longest
        where = f"data {name!r}: input {key!r}" if len(raw) > 1 else f"data {name!r}: x"
        hint = wanted.get(key)
        if hint is not None:
            kind, bound = hint.kind, hint.longest or None
        named = key in longest if isinstance(longest, Mapping) else len(raw) == 1
        as_unlike = lists_unlike or (bound is not None and named)
        unlike = _is_unlike(values) or (as_unlike and isinstance(values, list))
        if key in lengths or unlike or (hint is not None and hint.time is not None):
            one = _unlike(key, values, lengths.get(key), kind, bound, hint, where)
        else:
            one = _alike(key, values, kind, hint, where)
        inputs.append(one if hint is None else _as_wanted(one, hint, where))
    counts = {len(each.rows) for each in inputs}
    if len(counts) > 1:
        shown = ", ".join(f"{each.field.name} {len(each.rows)}" for each in inputs)
        raise BadInput(f"data {name!r}: inputs have unlike numbers of rows ({shown})")
    fields = tuple(each.field for each in inputs)
    table = np.empty((counts.pop(), width(fields)), np.float32)
    for each, (_, place, length_at) in zip(inputs, placed(fields), strict=True):
        table[:, place] = each.rows.reshape(len(each.rows), -1)
        if length_at is not None:
            table[:, length_at] = each.lengths
    if not np.isfinite(table).all():
        raise BadInput(f"data {name!r}: x has NaN or infinite values; fill or drop those rows")
    return fields, table


def checked_flat(rows: np.ndarray, fields: Fields) -> np.ndarray:
    """Rows that are flat already, in which ids and lengths are what they may be."""
    rows = rows.astype(np.float32)
    for field, place, length_at in placed(fields):
        if field.kind == "text":
            _check_ids(rows[:, place], field.vocabulary, f"input {field.name!r}")
        if length_at is not None:
            _check_lengths(rows[:, length_at], field.longest, f"input {field.name!r}")
    return rows


def check_rows(x: Any, rows: int, who: str) -> None:
    """Refuse inputs of which one has not as many rows as there are targets."""
    if isinstance(x, Mapping):
        by_name = dict(x)
    else:
        by_name = dict(enumerate(x)) if isinstance(x, tuple) and len(x) != rows else {"x": x}
    for name, values in by_name.items():
        if not hasattr(values, "__len__") or len(values) != rows:
            count = len(values) if hasattr(values, "__len__") else "no"
            raise BadInput(
                f"{who} has {count} rows of input {name!r} and {rows} labels; give one per row"
            )


def joined(sites: Sequence[tuple[Any, np.ndarray]]) -> Any:
    """The inputs of several clients as one, all given in the same way; of pairs (x, y)."""
    parts = [_rows_or_inputs(x, len(y)) for x, y in sites]
    first = parts[0]
    if isinstance(first, Mapping):
        for other in parts:
            if not isinstance(other, Mapping) or other.keys() != first.keys():
                raise BadInput(f"clients have unlike inputs; all need {', '.join(map(str, first))}")
        return {key: _end_to_end([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(part, tuple) or len(part) != len(first) for part in parts):
            raise BadInput(f"clients have unlike inputs; all need a tuple of {len(first)}")
        return tuple(_end_to_end(list(each)) for each in zip(*parts, strict=True))
    return [row for part in parts for row in part]


def _end_to_end(parts: Sequence[Any]) -> Any:
    if any(_is_unlike(part) for part in parts):
        return [row for part in parts for row in part]
    arrays = [np.asarray(part) for part in parts]
    if len({array.shape[1:] for array in arrays}) > 1:
        return [row for array in arrays for row in array]
    return np.concatenate(arrays)


def _is_unlike(values: Any) -> bool:
    """Are these rows of unlike length?"""
    if isinstance(values, np.ndarray):
        return values.dtype == object and _is_unlike(values.tolist())
    if not isinstance(values, list | tuple) or not values:
        return False
    shapes = {np.shape(row) for row in values} if not isinstance(values[0], list) else None
    if shapes is None:  # lists in lists: numpy cannot tell the shape of uneven ones
        return _lists_are_uneven(values)
    return len(shapes) > 1 and () not in shapes


def _lists_are_uneven(rows: Sequence[Any]) -> bool:
    try:
        np.asarray(rows)
    except ValueError:
        return True
    return False


def _by_name(
    x: Any, name: str, wanted: Mapping[str, Field]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs by name, or by position where they have none, and their lengths."""
    if not isinstance(x, Mapping):
        each = list(x) if isinstance(x, tuple) else [x]
        if wanted and len(each) != len(wanted):
            raise BadInput(
                f"data {name!r} has {len(each)} inputs, and these are wanted: {', '.join(wanted)}"
            )
        return dict(zip(wanted or map(str, range(len(each))), each, strict=False)), {}
    values = {str(key): value for key, value in x.items()}
    lengths = {
        key.removesuffix(LENGTHS): value
        for key, value in values.items()
        if key.endswith(LENGTHS) and key.removesuffix(LENGTHS) in values
    }
    raw = {key: value for key, value in values.items() if key not in {k + LENGTHS for k in lengths}}
    for key in raw:
        if wanted and key not in wanted:
            raise UnknownName(f"input of data {name!r}:", key, wanted)
        if not wanted and (not key.isidentifier() or iskeyword(key) or key == "self"):
            raise BadInput(
                f"data {name!r}: the input {key!r} cannot be an argument of a network's forward;"
                " give it a name of letters, digits and '_'"
            )
    if missing := [key for key in wanted if key not in raw]:
        raise BadInput(f"data {name!r} lacks the input {missing[0]!r}; it has: {', '.join(raw)}")
    if not raw:
        raise BadInput(f"data {name!r} has no inputs")
    return {key: raw[key] for key in wanted or raw}, lengths


def _alike(key: str, values: Any, kind: FieldKind | None, hint: Field | None, where: str) -> _Input:
    """An input whose rows are all of one shape."""
    array = as_array(values, where)
    if array.ndim == 1 and kind in (None, "table"):
        array = array[:, None]
    if hint is not None and hint.pixels:
        array = _whole(array, 255, f"{where}: pixels").astype(np.uint8)
    rows, kind_of_rows = inputs_of_kind(array, kind, where)
    pixels = kind_of_rows == "image" and rows.dtype == np.uint8
    shape = tuple(int(side) for side in rows.shape[1:])
    field = Field(key, kind_of_rows, shape, None, pixels, _vocabulary(rows, kind_of_rows, where))
    return _Input(field, rows)


def _unlike(
    key: str,
    values: Any,
    lengths: Any,
    kind: FieldKind | None,
    longest: int | None,
    hint: Field | None,
    where: str,
) -> _Input:
    """An input whose rows are of unlike length: padded already, or a list."""
    time = None if hint is None else hint.time
    if lengths is not None:
        rows, counts, time = _padded_already(values, lengths, longest, time, where)
    else:
        rows, counts, time = _padded(values, longest, time, where)
    if kind is None:
        kind = "text" if rows.ndim == 2 and rows.dtype.kind in "iu" else "signal"
    if kind not in ("text", "signal"):
        raise BadInput(f"{where}: rows of unlike length are text or signal, not {kind}")
    shape = tuple(int(side) for side in rows.shape[1:])
    field = Field(key, kind, shape, time, False, _vocabulary(rows, kind, where))
    return _Input(field, rows, counts)


def _padded_already(
    values: Any, lengths: Any, longest: int | None, time: int | None, where: str
) -> tuple[np.ndarray, np.ndarray, int]:
    rows, counts = as_array(values, where), as_array(lengths, f"{where}: lengths")
    if rows.ndim not in (2, 3) or rows.dtype.kind not in "biuf" or counts.shape != rows.shape[:1]:
        raise BadInput(
            f"{where} has shape {rows.shape} and lengths {counts.shape}; give [n, T], [n, T, C] or"
            " [n, C, T], and one length for each row"
        )
    most = int(counts.max(initial=0))
    if time is None:
        time = next((axis for axis, side in enumerate(rows.shape[1:]) if most <= side), 0)
    _check_lengths(counts, rows.shape[time + 1], where)
    if longest is not None:
        rows, counts = _resized(rows, time + 1, longest), np.minimum(counts, longest)
    inside = np.arange(rows.shape[time + 1]) < counts[:, None]
    if rows.ndim == 3:
        inside = np.expand_dims(inside, 2 - time)
    return np.where(inside, rows, np.zeros((), rows.dtype)), counts, time


def _resized(rows: np.ndarray, axis: int, longest: int) -> np.ndarray:
    """Cut or filled up along an axis."""
    cut = rows.take(range(min(longest, rows.shape[axis])), axis=axis)
    more = [(0, longest - cut.shape[axis] if i == axis else 0) for i in range(rows.ndim)]
    return np.pad(cut, more)


def _padded(
    values: Any, longest: int | None, time: int | None, where: str
) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows filled up with zeros to the longest, their lengths, and the axis of time."""
    rows = [_row(row, i, where) for i, row in enumerate(values)]
    if len({row.ndim for row in rows}) > 1 or rows[0].ndim not in (1, 2):
        raise BadInput(f"{where}: rows of unlike length are all [T], or all [T, C] or [C, T]")
    if time is None:
        time = _time_axis(rows, where)
    others = {row.shape[1 - time] for row in rows} if rows[0].ndim == 2 else set()
    if len(others) > 1:
        raise BadInput(f"{where}: rows have unlike numbers of channels ({sorted(others)})")
    counts = np.array([row.shape[time] for row in rows])
    if empty := np.flatnonzero(counts == 0).tolist():
        raise BadInput(f"{where}: row {empty[0]} is empty; drop such rows")
    side = int(counts.max()) if longest is None else longest
    counts = np.minimum(counts, side)
    shape = [*rows[0].shape]
    shape[time] = side
    padded = np.zeros((len(rows), *shape), np.result_type(*{row.dtype for row in rows}))
    for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
        some = (slice(count),) if time == 0 else (slice(None), slice(count))
        padded[i][some] = row[some]
    return padded, counts, time


def _row(row: Any, i: int, where: str) -> np.ndarray:
    try:
        array = np.asarray(row)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{where}: row {i} is no array of numbers")
    return array


def _time_axis(rows: Sequence[np.ndarray], where: str) -> int:
    """The axis along which rows are of unlike length; the first where they are all alike."""
    unlike = [axis for axis in range(rows[0].ndim) if len({row.shape[axis] for row in rows}) > 1]
    if len(unlike) > 1:
        raise BadInput(f"{where}: rows are of unlike length along both axes; one is time")
    return unlike[0] if unlike else 0


def _as_wanted(one: _Input, hint: Field, where: str) -> _Input:
    if one.field.kind == "text" and one.field.vocabulary > hint.vocabulary:
        raise BadInput(
            f"{where}: token ids go up to {one.field.vocabulary - 1}, and must be below"
            f" {hint.vocabulary}"
        )
    if replace(one.field, vocabulary=hint.vocabulary, name=hint.name) != hint:
        raise BadInput(f"{where} is ({one.field}), not ({hint})")
    return replace(one, field=hint)


def _vocabulary(rows: np.ndarray, kind: str, where: str) -> int:
    """One more than the highest token id; 0 of other inputs."""
    if kind != "text":
        return 0
    _check_ids(rows, MOST_WHOLE, where)
    return int(rows.max()) + 1


def _check_ids(ids: np.ndarray, below: int, where: str) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= below or (ids != np.rint(ids)).any()):
        raise BadInput(f"{where}: token ids are whole numbers from 0 to {below - 1}")


def _check_lengths(lengths: np.ndarray, longest: int, where: str) -> None:
    whole = lengths.dtype.kind in "biuf" and bool((lengths == np.rint(lengths)).all())
    if not whole or lengths.min(initial=1) < 1 or lengths.max(initial=1) > longest:
        raise BadInput(f"{where}: lengths are whole numbers from 1 to {longest}")


def _whole(array: np.ndarray, most: int, where: str) -> np.ndarray:
    fits = array.dtype.kind in "biuf" and bool((array == np.rint(array)).all())
    if not fits or array.min(initial=0) < 0 or array.max(initial=0) > most:
        raise BadInput(f"{where} are whole numbers from 0 to {most}")
    return array
