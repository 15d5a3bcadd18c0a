"""Class-wise statistics, dense over classes with counts: an absent class is a zero count."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def class_sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of rows [n, d] per class [K, d], and counts [K]."""
    member = F.one_hot(y, classes).to(z.dtype)
    return member.T @ z, member.sum(0)


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean row per class [K, d] (zero where there is none), and counts [K].

    >>> class_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), 3)
    (tensor([[0.],
            [2.],
            [0.]]), tensor([0., 2., 0.]))
    """
    sums, counts = class_sums(z, y, classes)
    return sums / counts.clamp_min(1)[:, None], counts


def pooled_means(means: Tensor, counts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Class means over m clients, from their `means` [m, K, d] and `counts` [m, K].

    Each row of `weights` [r, m] gives one result: the means [r, K, d], in which client i weighs
    weights[., i] times its count, and the total weight [r, K]. A class of no weight has mean zero.
    A count that noise made negative is none.

    >>> means, counts = torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[1.0], [3.0]])
    >>> mean, weight = pooled_means(means, counts, torch.ones(1, 2))
    >>> mean.flatten(), weight.flatten()
    (tensor([3.]), tensor([4.]))
    """
    share = weights.double()[:, :, None] * counts.double().clamp_min(0)  # [r, m, K]
    total = share.sum(1)
    mean = torch.einsum("rmk,mkd->rkd", share, means.double())
    mean = mean / torch.where(total > 0, total, 1.0)[:, :, None]
    return mean.to(means.dtype), total.to(counts.dtype)
