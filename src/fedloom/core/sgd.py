"""Stochastic gradient descent on a few tensors: the one optimiser of the one loop.

The same arithmetic as torch's own, tensor by tensor, without its import of the compiler in every
process and its wrappers around every step, which small networks feel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.core.phase import Opt


class SGD:
    """Momentum and weight decay as in `Opt`; tensors from `decayed` on are not decayed."""

    def __init__(self, params: Sequence[Tensor], opt: Opt, decayed: int) -> None:
        self.params, self.opt, self.decayed = params, opt, decayed
        self._buffers: list[Tensor] = []

    @torch.no_grad()
    def step(self, grads: list[Tensor]) -> None:
        """Clip, decay, accelerate, move."""
        opt = self.opt
        if opt.clip:
            grads = clipped(grads, opt.clip)
        if opt.weight_decay:
            grads = [
                g.add(p, alpha=opt.weight_decay) if i < self.decayed else g
                for i, (p, g) in enumerate(zip(self.params, grads, strict=True))
            ]
        if opt.momentum:
            grads = self._accelerated(grads)
        for param, grad in zip(self.params, grads, strict=True):
            param.add_(grad, alpha=-opt.lr)

    def _accelerated(self, grads: list[Tensor]) -> list[Tensor]:
        if not self._buffers:
            self._buffers = [g.clone() for g in grads]
        else:
            for buffer, grad in zip(self._buffers, grads, strict=True):
                buffer.mul_(self.opt.momentum).add_(grad)
        return self._buffers


def clipped(grads: list[Tensor], bound: float) -> list[Tensor]:
    """Gradients scaled down together so that their common norm is at most `bound`.

    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    [tensor([0.6000]), tensor([0.8000])]
    """
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    scale = (bound / (norm + 1e-6)).clamp(max=1.0)
    return [g * scale for g in grads]
