"""What the diagnostics take, checked: tensors or arrays in, float64 tensors on the CPU out."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import BadInput

Array: TypeAlias = Tensor | npt.NDArray[Any]

SUM_TOLERANCE = 1e-4
"""How far a row of float32 probabilities may be from one."""
UNDERFLOW = 104.0
"""exp(-104) is rounded to zero in float32."""


def as_matrix(x: Array, name: str = "features") -> Tensor:
    """Rows as float64 [n, d]; feature maps are flattened, a vector [n] becomes one column.

    >>> as_matrix(np.zeros((4, 3, 2, 2), dtype=np.float32)).shape
    torch.Size([4, 12])
    """
    rows = _rows(x, name)
    # Anything that is not finite leaves its mark on the sum, which is quicker than a look at each.
    if not rows.sum().isfinite() and not rows.isfinite().all():
        raise BadInput(f"{name} hold NaN or infinite entries; leave out the model that diverged")
    return rows


def as_labels(y: Array, rows: int, classes: int | None = None, name: str = "labels") -> Tensor:
    """Whole numbers from 0 (below `classes`, if given) as int64 [rows].

    >>> as_labels(np.array([2, 0], dtype=np.uint8), 2)
    tensor([2, 0])
    """
    labels = torch.as_tensor(y if isinstance(y, Tensor) else np.array(y)).detach().to("cpu")
    if labels.shape != (rows,):
        raise BadInput(f"{name} have shape {tuple(labels.shape)}; {rows} rows need ({rows},)")
    if labels.is_floating_point() or labels.is_complex():
        raise BadInput(f"{name} are {labels.dtype}; give whole numbers")
    if rows == 0:
        raise BadInput(f"there are no {name}; give at least one row")
    labels = labels.long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        raise BadInput(f"{name} run from {low} to {high}; they must lie in 0..{_last(classes)}")
    return labels


def distinct(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The labels that occur, in order, and each row's place among them.

    >>> distinct(torch.tensor([7, 2, 7]))
    (tensor([2, 7]), tensor([1, 0, 1]))
    """
    occurs = labels.bincount() > 0
    return occurs.nonzero().flatten(), (occurs.cumsum(0) - 1)[labels]


def as_probabilities(p: Array, name: str = "probabilities") -> Tensor:
    """Rows of probabilities [n, C] that sum to one, divided by their exact sum.

    >>> as_probabilities(np.array([[0.25, 0.75]]))
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    rows = as_matrix(p, name)
    if not _distributions(rows):
        raise BadInput(f"{name} are not all distributions over classes; apply softmax to logits")
    return rows / rows.sum(1, keepdim=True)


def as_logits(x: Array, name: str = "logits") -> Tensor:
    """Logits [n, C]; refuses softmax outputs, which a second softmax would flatten unnoticed.

    Minus infinity, the logarithm of a probability that was rounded to zero, is set to `UNDERFLOW`
    below the row's largest entry.

    >>> as_logits(np.log([[0.5, 0.5], [1.0, 1e-9]]))
    tensor([[ -0.6931,  -0.6931],
            [  0.0000, -20.7233]], dtype=torch.float64)
    """
    rows = _rows(x, name)
    least = rows.amax(1, keepdim=True) - UNDERFLOW
    rows = as_matrix(torch.where(rows == -torch.inf, least, rows), name)
    if rows.shape[1] < 2 or _distributions(rows):
        raise BadInput(f"{name} look like probabilities; give logits or log-probabilities [n, C]")
    return rows


def paired(*features: Array) -> list[Tensor]:
    """Matrices of features of the same inputs, row by row.

    >>> [len(rows) for rows in paired(np.zeros((3, 2)), np.zeros((3, 5)))]
    [3, 3]
    """
    matrices = [as_matrix(x) for x in features]
    if len(sizes := sorted({len(x) for x in matrices})) > 1:
        raise BadInput(
            f"features have {sizes[0]} and {sizes[-1]} rows; they must come from the same inputs"
        )
    return matrices


def same_width(x: Tensor, *others: Tensor) -> None:
    """Raises unless all matrices have as many columns as the first.

    >>> same_width(torch.zeros(3, 2), torch.zeros(1, 2))
    """
    for other in others:
        if other.shape[1] != x.shape[1]:
            raise BadInput(
                f"features have {x.shape[1]} and {other.shape[1]} columns; compare one layer of"
                " one architecture"
            )


def _rows(x: Array, name: str) -> Tensor:
    if isinstance(x, Tensor):
        rows = x.detach().to("cpu", torch.float64)
    else:  # a copy in C order: torch shares neither read-only nor reversed arrays
        rows = torch.from_numpy(np.array(x, dtype=np.float64, order="C"))
    if rows.ndim == 0 or rows.numel() == 0:
        raise BadInput(f"{name} of shape {tuple(rows.shape)} hold no rows; give [n, d] with n >= 1")
    return rows.flatten(1) if rows.ndim > 1 else rows[:, None]


def _distributions(rows: Tensor) -> bool:
    sums_to_one = (rows.sum(1) - 1).abs() <= SUM_TOLERANCE
    return bool((rows >= 0).all() and sums_to_one.all())


def _last(classes: int | None) -> str:
    return "" if classes is None else str(classes - 1)
