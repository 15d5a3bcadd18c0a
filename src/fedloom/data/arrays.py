"""A user's inputs as arrays in the layout and type of their kind."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from fedloom.core.fields import FieldKind
from fedloom.errors import BadInput


def as_array(values: Any, where: str) -> np.ndarray:
    """What a user gives as an array; an error where it cannot be one."""
    try:
        return np.asanyarray(values)
    except (ValueError, TypeError, RuntimeError) as e:  # rows of unlike lengths, a tensor in use
        raise BadInput(
            f"{where} is not an array ({str(e).splitlines()[0]}); "
            "give a numpy array whose rows are all of one shape"
        ) from None


def inputs_of_kind(
    x: np.ndarray, kind: FieldKind | None, where: str
) -> tuple[np.ndarray, FieldKind]:
    """Inputs in the layout and type of their kind, which follows from shape and type."""
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{where} must be numbers, but its type is {x.dtype}")
    if kind == "text":
        return x.astype(np.int32), kind
    if x.ndim == 3 and (kind == "image" or (kind is None and x.dtype == np.uint8)):
        x = x[:, None]
    kind_of_axes: dict[int, FieldKind] = {4: "image", 3: "signal", 2: "table"}
    inferred = kind or kind_of_axes.get(x.ndim)
    if inferred is None or inferred not in get_args(FieldKind):
        raise BadInput(
            f"{where} has shape {x.shape}; give images [n, C, H, W], signals [n, C, L] "
            "or a table [n, d]"
        )
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    if inferred != "image" or x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and refused below
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise BadInput(f"{where} has NaN or infinite values; fill or drop those rows")
    return x, inferred
