"""One step of gradient ascent, for the inner player of a min-max game."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def ascend(value: Callable[[], Tensor], over: Sequence[Tensor], lr: float) -> None:
    """Move the tensors `over` in place, up the gradient of `value`; nothing else gets a gradient.

    >>> theta = torch.tensor([3.0])
    >>> ascend(lambda: (theta**2).sum(), [theta], lr=0.5)
    >>> theta, theta.requires_grad
    (tensor([6.]), False)
    """
    for tensor in over:
        tensor.requires_grad_(True)
    gradients = torch.autograd.grad(value(), over)
    for tensor, gradient in zip(over, gradients, strict=True):
        tensor.requires_grad_(False).add_(gradient, alpha=lr)
