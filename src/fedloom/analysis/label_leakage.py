"""What an upload tells of how many rows of each class a client has.

Shares of classes [K] are estimated from what was sent; `share_error` says how far they are off.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from fedloom.analysis.arrays import Array, as_matrix, same_width
from fedloom.errors import BadInput

SUM_WEIGHT = 1e3
"""How much heavier than an equation of the data it weighs that shares sum to one."""


def shares_of_counts(per_class: Array) -> Tensor:
    """Shares from numbers [K] that grow with a class's rows: counts that were sent, or sums.

    >>> shares_of_counts(torch.tensor([3, 0, 1]))
    tensor([0.7500, 0.0000, 0.2500], dtype=torch.float64)
    """
    counts = as_matrix(per_class, "counts").flatten().clamp_min(0)
    if float(counts.sum()) == 0:
        return torch.full_like(counts, 1 / len(counts))
    return counts / counts.sum()


def present_classes(per_class: Array) -> Tensor:
    """Which classes a client has, from what it sent for each, [K, d] or [K]: a class without rows
    is zero there.

    >>> present_classes(torch.tensor([[0.5, 0.0], [0.0, 0.0]]))
    tensor([ True, False])
    """
    return (as_matrix(per_class, "what was sent for each class") != 0).any(1)


def shares_of_bias(bias_change: Array, moved: float, predictions: Array | None = None) -> Tensor:
    """Shares from the change of a softmax head's bias [K] over a client's steps.

    The gradient of a step is the batch's mean prediction less its shares of classes, so that a
    round of plain steps moves the bias by `moved` (learning rate times steps) times
    share - mean prediction. `predictions` [K, K] are a model's mean predictions for rows of each
    class (of rows the attacker has); without them all classes are taken to be predicted alike, as
    before training. Then s - predictions' s = change / moved is solved for shares s.

    >>> shares_of_bias(torch.tensor([0.25, -0.25]), moved=1.0)
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    change = as_matrix(bias_change, "the bias's change").flatten() / moved
    classes = len(change)
    if predictions is None:
        p = torch.full((classes, classes), 1 / classes, dtype=torch.float64)
    else:
        p = as_matrix(predictions, "predictions")
        if p.shape != (classes, classes):
            raise BadInput(
                f"predictions of {classes} classes are [{classes}, {classes}], a row for each"
                f" class, not {tuple(p.shape)}"
            )
    system = torch.eye(classes, dtype=torch.float64) - p.T
    return _on_simplex(system, change)


def shares_of_update(update: Array, per_class: Array) -> Tensor:
    """Shares from any part of an update, [P], against what rows of each class alone would have
    done, [K, P]: the mixture with weights of 0 or more that comes closest. The update's length
    does not matter.

    >>> shares_of_update(torch.tensor([3.0, 1.0]), torch.eye(2))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    target, classes = as_matrix(update, "the update").flatten(), as_matrix(per_class, "updates")
    same_width(target[None], classes)
    # Of K unknowns the normal equations are small, whatever P is.
    gram, towards = classes @ classes.T, classes @ target
    values, axes = torch.linalg.eigh(gram)
    root = axes * values.clamp_min(1e-12 * values.max()).sqrt()
    weights, _ = optimize.nnls(root.T.numpy(), torch.linalg.lstsq(root, towards).solution.numpy())
    return shares_of_counts(torch.from_numpy(weights))


def labels_of_shares(shares: Array, rows: int) -> Tensor:
    """Labels [rows] in these shares, rounded by largest remainders.

    >>> labels_of_shares(torch.tensor([0.7, 0.0, 0.3]), 4)
    tensor([0, 0, 0, 2])
    """
    wanted = shares_of_counts(shares) * rows
    counts = wanted.floor().long()
    left = (wanted - counts).argsort(descending=True, stable=True)[: rows - int(counts.sum())]
    counts[left] += 1
    return torch.arange(len(counts)).repeat_interleave(counts)


def share_error(estimated: Array, counts: Array) -> float:
    """Total variation between estimated shares and a client's own counts: the share of its rows
    that the estimate puts into a wrong class; 0 is all right, 1 all wrong.

    >>> share_error(torch.tensor([0.5, 0.5]), torch.tensor([3, 1]))
    0.25
    """
    a, b = shares_of_counts(estimated), shares_of_counts(counts)
    same_width(a[None], b[None])
    return float((a - b).abs().sum()) / 2


def _on_simplex(system: Tensor, values: Tensor) -> Tensor:
    """Least squares over shares: 0 or more, with sum one."""
    a = np.vstack([system.numpy(), np.full((1, system.shape[1]), SUM_WEIGHT)])
    solved, _ = optimize.nnls(a, np.append(values.numpy(), SUM_WEIGHT))
    return shares_of_counts(torch.from_numpy(solved))
