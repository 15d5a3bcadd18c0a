"""Nearest neighbours among stored features, by exact search."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kernel = Literal["distance", "gaussian"]


def neighbour_votes(
    z: Tensor, stored: Tensor, y: Tensor, k: int, classes: int, kernel: Kernel = "distance"
) -> Tensor:
    """Class probabilities [n, K] of rows z [n, d].

    The k nearest of the stored rows z_j [m, d] vote for their labels y [m], with the weight
    e^{-|z - z_j|}, or e^{-|z - z_j|^2 / d} with the kernel "gaussian". With fewer than k stored
    rows, all of them vote.

    >>> stored, y = torch.tensor([[0.0], [1.0]]), torch.tensor([2, 0])
    >>> neighbour_votes(torch.zeros(1, 1), stored, y, k=2, classes=3)
    tensor([[0.2689, 0.0000, 0.7311]])
    """
    # The faster product form of the distance loses the digits of near neighbours.
    distance = torch.cdist(z, stored, compute_mode="donot_use_mm_for_euclid_dist")
    near, neighbours = distance.topk(min(k, len(stored)), largest=False)
    log_weight = -near if kernel == "distance" else -(near**2) / z.shape[1]
    votes = log_weight.softmax(1)  # the weights over their sum, also where all of them underflow
    return votes.new_zeros(z.shape[0], classes).scatter_add_(1, y[neighbours], votes)
