"""Losses that do not depend on how often a client holds each class."""

from __future__ import annotations

import torch
from torch import Tensor

ABSENT = -1000.0
"""Stands for log 0: its exponential is zero, and unlike -inf it is still a number times zero."""


def log_prior(counts: Tensor, gamma: float = 1.0) -> Tensor:
    """gamma log P(c) from class counts [K]; added to logits it turns softmax into balanced softmax.

    A class without samples drops out of the softmax; with gamma = 0 nothing changes.

    >>> log_prior(torch.tensor([3.0, 1.0, 0.0])).softmax(0)
    tensor([0.7500, 0.2500, 0.0000])
    """
    if not gamma:
        return torch.zeros_like(counts)
    share = counts / counts.sum()
    return torch.where(counts > 0, gamma * share.log(), ABSENT)
