"""Mean squared differences, of one pair of tensors or of many side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def mean_squares(x: Tensor, y: Tensor, dims: int) -> Tensor:
    """Mean of (x - y)^2 over the last `dims` dimensions, which have the same sizes in both.

    Without further dimensions it is torch's `mse_loss` to the last bit, gradients included, where
    numbers lie in memory in their order. With more in front, each of the means has the bits that it
    has alone; `mse_loss` of stacks has not.

    >>> x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    >>> mean_squares(x, torch.zeros(2), dims=1)
    tensor([ 2.5000, 17.0000])
    """
    squares: Tensor = _MeanSquares.apply(x, y, dims)  # type: ignore[no-untyped-call]
    return squares


class _MeanSquares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, dims: int) -> Tensor:
        return (x - y).square().flatten(x.ndim - dims).mean(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x, y, ctx.dims = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, y = ctx.saved_tensors
        gap = x - y
        numbers = gap[(0,) * (gap.ndim - ctx.dims)].numel()
        # In the order of torch's own kernel: 2/numbers first, then the gradient that arrives.
        of_x = gap * (2 / numbers) * g[(...,) + (None,) * ctx.dims]
        of_y = (-of_x).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None
        return of_x.sum_to_size(x.shape) if ctx.needs_input_grad[0] else None, of_y, None
