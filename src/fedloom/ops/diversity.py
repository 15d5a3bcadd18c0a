"""Diversity of what a generator makes."""

from __future__ import annotations

import torch
from torch import Tensor


def sameness(noise: Tensor, made: Tensor) -> Tensor:
    """exp(-mean_ij MSE(noise_i, noise_j) L1(made_i, made_j)): 1 if all noise [n, e] gives the same
    output [n, ...], less the further unlike noise is driven apart.

    >>> noise = torch.tensor([[0.0, 0.0], [2.0, 0.0]])  # apart by 4/2
    >>> made = torch.tensor([[1.0, 1.0, 1.0], [3.0, 1.0, 2.0]])  # by 3/3
    >>> sameness(noise, made).log()  # -(0 + 2 * 1 + 2 * 1 + 0) / 4
    tensor(-1.)
    """
    flat = made.flatten(1)
    apart = torch.cdist(flat, flat, p=1) / flat.shape[1]
    unlike = (noise[:, None] - noise).pow(2).mean(2)
    return torch.exp(-(unlike * apart).mean())
