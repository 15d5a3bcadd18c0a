"""How diverse the outputs of a generator are."""

from __future__ import annotations

import torch
from torch import Tensor


def sameness(noise: Tensor, outputs: Tensor) -> Tensor:
    """exp(-mean_ij MSE(noise_i, noise_j) L1(outputs_i, outputs_j)).

    It is 1 if all noise [n, e] gives the same output [n, ...], and smaller the further the outputs
    of different noise are apart.

    >>> noise = torch.tensor([[0.0, 0.0], [2.0, 0.0]])  # apart by 4/2
    >>> outputs = torch.tensor([[1.0, 1.0, 1.0], [3.0, 1.0, 2.0]])  # by 3/3
    >>> sameness(noise, outputs).log()  # -(0 + 2 * 1 + 2 * 1 + 0) / 4
    tensor(-1.)
    """
    flat = outputs.flatten(1)
    output_distance = torch.cdist(flat, flat, p=1) / flat.shape[1]
    noise_distance = (noise[:, None] - noise).pow(2).mean(2)
    return torch.exp(-(noise_distance * output_distance).mean())
