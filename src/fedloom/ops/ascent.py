"""One step of gradient ascent, for the inner player of a min-max game."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def ascend(
    value: Callable[[], Tensor],
    over: Sequence[Tensor],
    lr: float,
    momentum: float = 0.0,
    velocity: list[Tensor] | None = None,
) -> None:
    """Move the tensors `over` in place, up the gradient of `value`; nothing else gets a gradient.

    `velocity` is what momentum remembers: an empty list before the first step, which is filled and
    changed in place.

    >>> theta = torch.tensor([3.0])
    >>> ascend(lambda: (theta**2).sum(), [theta], lr=0.5)
    >>> theta, theta.requires_grad
    (tensor([6.]), False)
    """
    for tensor in over:
        tensor.requires_grad_(True)
    gradients: Sequence[Tensor] = torch.autograd.grad(value(), over)
    if momentum and velocity is not None:
        gradients = _accelerated(gradients, momentum, velocity)
    for tensor, gradient in zip(over, gradients, strict=True):
        tensor.requires_grad_(False).add_(gradient, alpha=lr)


def _accelerated(
    gradients: Sequence[Tensor], momentum: float, velocity: list[Tensor]
) -> list[Tensor]:
    """v <- momentum v + g, from v = 0, as of torch's SGD."""
    if not velocity:
        velocity += [torch.zeros_like(gradient) for gradient in gradients]
    for v, gradient in zip(velocity, gradients, strict=True):
        v.mul_(momentum).add_(gradient)
    return velocity
