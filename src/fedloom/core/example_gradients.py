"""Gradients of single rows, each clipped, as one sum: what DP-SGD (Abadi et al., 2016) adds noise
to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedloom.core.tree import Tree

MOST_NUMBERS = 2**25
"""Of the gradients of single rows that are in memory together (128 MB)."""
RowLoss = Callable[..., Tensor]
"""From the trained tensors and what there is of one row to the loss of that row."""


def clipped_sum(
    loss: RowLoss, weights: Tree, rows: Sequence[object], count: int, clip: float
) -> tuple[Tree, Tensor]:
    """The sum over rows of their gradients, none of them longer than `clip`, and the losses [n].
    What is no number in a gradient counts as 0, or one row could spoil the sum.

    `rows` are what `loss` takes after the weights: tensors, or dictionaries of tensors, with the
    rows in front. The length of a gradient is over all tensors together.
    """

    def with_loss(weights: Tree, *row: object) -> tuple[Tensor, Tensor]:
        value = loss(weights, *row)
        return value, value.detach()

    # Layers that draw (dropout, Gaussians) draw for every row by itself.
    by_row = vmap(
        grad(with_loss, has_aux=True), in_dims=(None, *[0] * len(rows)), randomness="different"
    )
    numbers = sum(prod(value.shape) for value in weights.values())
    width = max(1, MOST_NUMBERS // max(1, numbers))
    total = {key: torch.zeros_like(value) for key, value in weights.items()}
    losses = []
    for start in range(0, count, width):
        some = [_part(of, slice(start, start + width)) for of in rows]
        found, values = by_row(weights, *some)
        gradients = {key: g.nan_to_num(0.0, 0.0, 0.0) for key, g in found.items()}
        factor = _factors(list(gradients.values()), clip)
        for key, g in gradients.items():
            total[key] += torch.einsum("n,n...->...", factor, g)
        losses.append(values)
    return total, torch.cat(losses)


def _factors(gradients: Sequence[Tensor], clip: float) -> Tensor:
    """What brings each row's gradient [n, ...] to the length `clip`, [n]; 1 where it is not
    longer."""
    squares = torch.stack([g.reshape(len(g), -1).double().square().sum(1) for g in gradients])
    return (clip / squares.sum(0).sqrt()).clamp_max(1.0).to(gradients[0].dtype)


def _part(of: object, rows: slice) -> object:
    if isinstance(of, dict):
        return {key: value[rows] for key, value in of.items()}
    assert isinstance(of, Tensor)
    return of[rows]
