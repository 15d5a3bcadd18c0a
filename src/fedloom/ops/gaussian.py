"""Diagonal Gaussians: divergence and products of experts. Scales are standard deviations."""

from __future__ import annotations

from torch import Tensor


def kl_diagonal(mean_p: Tensor, std_p: Tensor, mean_q: Tensor, std_q: Tensor) -> Tensor:
    """KL(p || q) of diagonal Gaussians, summed over the last dimension.

    >>> import torch
    >>> one, two = torch.ones(1), torch.full((1,), 2.0)
    >>> round(float(kl_diagonal(one, one, 0 * one, two)), 6)  # ln 2 + (1 + 1)/8 - 1/2
    0.443147
    """
    spread = (std_p**2 + (mean_p - mean_q) ** 2) / (2 * std_q**2)
    return (std_q.log() - std_p.log() + spread - 0.5).sum(-1)


def product_of_experts(
    precision: Tensor, precision_mean: Tensor, prior_precision: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a product of Gaussians and one prior N(0, 1/prior_precision).

    The experts are given by two sums: of their precisions, and of their precisions times their
    means. Such sums cannot underflow, as products of densities two at a time can.

    >>> import torch
    >>> product_of_experts(torch.tensor([3.0]), torch.tensor([8.0]))
    (tensor([2.]), tensor([0.5000]))
    """
    total = precision + prior_precision
    return precision_mean / total, total**-0.5
