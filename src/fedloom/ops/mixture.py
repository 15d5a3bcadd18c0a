"""Expectation maximisation for the weights of a mixture of given learners."""

from __future__ import annotations

import torch
from torch import Tensor


def responsibilities(losses: Tensor, weights: Tensor) -> Tensor:
    """The posterior [n, M] of which learner a sample belongs to: weights [M] times e^-losses
    [n, M], normalised for each sample.

    >>> responsibilities(torch.tensor([[0.0, 0.0]]), torch.tensor([0.25, 0.75]))
    tensor([[0.2500, 0.7500]])
    """
    return (weights.log() - losses).softmax(1)


def mixture_weights(losses: Tensor, steps: int) -> Tensor:
    """Weights [M] after this many steps of EM from equal weights, the learners held fixed.

    >>> mixture_weights(torch.tensor([[0.0, 50.0], [0.0, 50.0]]), steps=1)
    tensor([1.0000e+00, 1.9287e-22])
    """
    weights = torch.full_like(losses[0], 1 / losses.shape[1])
    for _ in range(steps):
        weights = responsibilities(losses, weights).mean(0)
    return weights
