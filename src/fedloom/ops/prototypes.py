"""Class-wise statistics, dense over classes with counts: an absent class is a zero count."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def class_sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of rows [n, d] per class [K, d], and counts [K]."""
    member = F.one_hot(y, classes).to(z.dtype)
    return member.T @ z, member.sum(0)


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean row per class [K, d] (zero where there is none), and counts [K].

    >>> import torch
    >>> class_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), 3)
    (tensor([[0.],
            [2.],
            [0.]]), tensor([0., 2., 0.]))
    """
    sums, counts = class_sums(z, y, classes)
    return sums / counts.clamp_min(1)[:, None], counts
