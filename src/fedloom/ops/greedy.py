"""Choosing the best few of many, and a few at random."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def epsilon_greedy(score: Tensor, count: int, epsilon: float, gen: Generator) -> Tensor:
    """The indices of `count` entries, or of all if there are fewer.

    Each of the choices takes the highest entry that is left, but with probability `epsilon` one at
    random from the entries that were not chosen as highest. Equal scores are in random order.

    >>> epsilon_greedy(torch.tensor([0.0, 3.0, 2.0]), 2, 0.0, torch.Generator())
    tensor([1, 2])
    """
    shuffled = torch.randperm(len(score), generator=gen)
    order = shuffled[score[shuffled].argsort(descending=True, stable=True)]
    count = min(count, len(score))
    explored = int((torch.rand(count, generator=gen) < epsilon).sum())
    highest, rest = order[: count - explored], order[count - explored :]
    at_random = rest[torch.randperm(len(rest), generator=gen)[:explored]]
    return torch.cat([highest, at_random])
