"""Rows and tables of plain numbers, checked once for the statistics over rounds and clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedloom.errors import BadInput

Numbers = NDArray[np.float64]


def vector(values: ArrayLike, what: str) -> Numbers:
    """At least one finite number, float64.

    >>> vector([1, 2], "accuracy")
    array([1., 2.])
    """
    row = _floats(values, what)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise BadInput(f"{what} must be a row of at least one finite number, not {values!r}")
    return row


def table(values: ArrayLike, what: str, *, gaps: bool = False) -> Numbers:
    """Two axes, at least one number; with `gaps`, NaN or None marks what is missing.

    >>> table([[1, None]], "seconds", gaps=True)
    array([[ 1., nan]])
    """
    cells = _floats(values, what)
    if cells.ndim != 2 or cells.size == 0:
        raise BadInput(f"{what} must have two axes and at least one number, not {cells.shape}")
    if np.isinf(cells).any() or (np.isnan(cells).any() and not gaps):
        raise BadInput(f"{what} has numbers that are missing or not finite; leave them out")
    return cells


def shares(values: ArrayLike, what: str) -> Numbers:
    """Accuracies as fractions: a vector between 0 and 1.

    >>> shares([0.5, 1], "accuracy")
    array([0.5, 1. ])
    """
    row = vector(values, what)
    if row.min() < 0.0 or row.max() > 1.0:
        raise BadInput(f"{what} must lie between 0 and 1, not {row.min():g} to {row.max():g}")
    return row


def same_length(**rows: Numbers) -> None:
    """Refuse rows that do not belong together.

    >>> same_length(accuracy=np.zeros(3), n=np.ones(3))
    """
    lengths = {name: len(row) for name, row in rows.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise BadInput(f"one number for each is needed, but there are {counts}")


def row_counts(n: ArrayLike, what: str = "n") -> Numbers:
    """Test rows per client: whole numbers from 1.

    >>> row_counts([50, 1])
    array([50.,  1.])
    """
    counts = vector(n, what)
    if counts.min() < 1 or (counts != np.round(counts)).any():
        raise BadInput(f"{what} must be whole numbers from 1, not {counts.tolist()}")
    return counts


def _floats(values: ArrayLike, what: str) -> Numbers:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{what} must be numbers in equal rows: {error}") from error
