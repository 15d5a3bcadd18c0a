"""Rows by algebra alone: from the change of a dense layer, and from means of known rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_matrix
from fedloom.errors import BadInput

SILENT = 1e-6
"""A unit whose bias moved by less than this share of the largest move was silent."""
DETERMINED = 1e-6
"""How far from one a row's resolution may be by rounding."""


def rows_of_dense_layer(
    weights: Array,
    biases: Array,
    low: float | None = None,
    high: float | None = None,
    most: int | None = None,
) -> Tensor:
    """What a dense layer's units read, from the change of its weights [u, d] and biases [u].

    The gradient of a unit's weights is the sum over rows of that of its bias times the row, so the
    change of the weights over that of the bias is a weighted mean of the rows for which the unit
    fired; of one row, it is the row. The weights may be below zero, so a mean mostly leaves the
    range that rows have: ratios are sorted by how far they leave `low`..`high`, those of single
    rows come first, and `most` of them are given back.

    >>> row = torch.tensor([1.0, 2.0, 3.0])
    >>> rows_of_dense_layer(torch.outer(torch.tensor([0.5, 0.0]), row), torch.tensor([0.5, 0.0]))
    tensor([[1., 2., 3.]], dtype=torch.float64)
    """
    w, b = (
        as_matrix(weights, "changes of weights"),
        as_matrix(biases, "changes of biases").flatten(),
    )
    if len(w) != len(b):
        raise BadInput(f"{len(w)} units have weights and {len(b)} biases; give those of one layer")
    fired = (b.abs() > SILENT * b.abs().max()) & (b != 0)
    ratios = w[fired] / b[fired][:, None]
    least = -torch.inf if low is None else low
    largest = torch.inf if high is None else high
    outside = (least - ratios).clamp_min(0) + (ratios - largest).clamp_min(0)
    order = outside.square().mean(1).argsort(stable=True)
    return ratios[order[:most]]


@dataclass(frozen=True, eq=False)
class SolvedRows:
    """Rows that have given means."""

    rows: Tensor
    """[n, d]; of those that the means do not determine, what lies nearest to the mean of all."""
    determined: Tensor
    """[n]: is the row the only one that has these means?"""


def rows_of_means(means: Array, members: Array) -> SolvedRows:
    """Rows from means [m, d] whose members [m, n] are known: how often each row is in each mean.

    Whoever knows a run's seed knows the members of FedBR's and FedMix's means.

    >>> pairs = torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 0, 1]])
    >>> rows_of_means(torch.tensor([[1.5], [2.5], [2.0]]), pairs).rows.flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    given, counts = as_matrix(means, "means"), as_matrix(members, "members")
    if len(given) != len(counts) or (counts.sum(1) <= 0).any():
        raise BadInput("every mean needs a row of members, how often it holds each of the rows")
    system = counts / counts.sum(1, keepdim=True)
    inverse = torch.linalg.pinv(system)
    middle = given.mean(0)
    rows = middle + inverse @ (given - middle)
    resolution = (inverse @ system).diagonal()
    return SolvedRows(rows.round(decimals=12), resolution > 1 - DETERMINED)
