"""Adam on a few tensors, for what a server trains between two rounds.

As with the clients' optimiser, without torch's own and its import of the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FADING = (0.9, 0.999)
EPSILON = 1e-8


class Adam:
    """Kingma and Ba (2015), Algorithm 1, with its default constants; moves leaves in place.

    >>> w = torch.tensor([1.0])
    >>> Adam([w], lr=0.25).step([torch.tensor([7.0])])  # a first step is lr times the sign
    >>> w
    tensor([0.7500])
    """

    def __init__(self, params: Sequence[Tensor], lr: float) -> None:
        self.params, self.lr, self.t = params, lr, 0
        self.means = [torch.zeros_like(p) for p in params]
        self.squares = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """One step against these gradients."""
        self.t += 1
        first, second = FADING
        for p, g, m, v in zip(self.params, grads, self.means, self.squares, strict=True):
            m.mul_(first).add_(g, alpha=1 - first)
            v.mul_(second).addcmul_(g, g, value=1 - second)
            size = (v / (1 - second**self.t)).sqrt_().add_(EPSILON)
            p.addcdiv_(m, size, value=-self.lr / (1 - first**self.t))
