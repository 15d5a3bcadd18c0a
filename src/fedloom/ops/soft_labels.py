"""Labels as distributions over classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def soft_labels(target: Tensor, classes: int, like: Tensor) -> Tensor:
    """Hard labels [n] as one-hot rows [n, K] of the type of `like`; soft labels stay as they are.

    >>> import torch
    >>> soft_labels(torch.tensor([1, 0]), 3, torch.zeros(1))
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
    """
    return target if target.is_floating_point() else F.one_hot(target, classes).to(like.dtype)
