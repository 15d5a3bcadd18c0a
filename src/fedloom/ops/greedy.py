"""Choosing a few of many by what is known of them, with some left to chance."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def epsilon_greedy(score: Tensor, count: int, epsilon: float, gen: Generator) -> Tensor:
    """Places of `count` entries: the highest, but each choice is left to chance with probability
    `epsilon` and falls then on any of the rest. Equal scores are in random order; fewer entries
    than `count`: all of them.

    >>> epsilon_greedy(torch.tensor([0.0, 3.0, 2.0]), 2, 0.0, torch.Generator())
    tensor([1, 2])
    """
    shuffled = torch.randperm(len(score), generator=gen)
    order = shuffled[score[shuffled].argsort(descending=True, stable=True)]
    explored = int((torch.rand(min(count, len(score)), generator=gen) < epsilon).sum())
    best = min(count, len(score)) - explored
    left = order[best:]
    chance = left[torch.randperm(len(left), generator=gen)[:explored]]
    return torch.cat([order[:best], chance])
