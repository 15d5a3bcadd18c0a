"""Simplex equiangular tight frames: as many directions as classes, all equally far apart."""

from __future__ import annotations

import torch
from torch import Tensor


def simplex_etf(classes: int, dims: int) -> Tensor:
    """K unit vectors [K, d], every two at cosine -1/(K - 1), in a random rotation; d >= K >= 2.

    These are the rows of sqrt(K/(K-1)) (I - 11'/K) U', where the columns of U [d, K] are
    orthonormal. U is drawn from torch's default stream, which the caller seeds.

    >>> v = simplex_etf(3, 5)
    >>> (v @ v.T).round(decimals=4)
    tensor([[ 1.0000, -0.5000, -0.5000],
            [-0.5000,  1.0000, -0.5000],
            [-0.5000, -0.5000,  1.0000]])
    """
    u, _ = torch.linalg.qr(torch.randn(dims, classes, dtype=torch.float64))
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    vectors: Tensor = (classes / (classes - 1)) ** 0.5 * centred @ u.T
    return vectors.float()
