"""Means of a client's rows, inputs and labels alike: what mean-augmented learning exchanges."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedloom.core.data import Split
from fedloom.ops.soft_labels import soft_labels

ROWS = 512
"""How many inputs are held in memory at a time."""


def mean_data(split: Split, means: int, of: int, classes: int, gen: Generator) -> dict[str, Tensor]:
    """Means of disjoint random groups of rows, which together hold all rows: `x` [means, ...], `y`
    [means, K] and `size` [means], the number of rows in each group.

    No group has fewer than `of` rows; where there are not enough rows for all groups, the last
    groups have size zero.
    """
    first = split.x(torch.tensor([0]))
    labels = soft_labels(split.y, classes, first)
    x = first.new_zeros(means, *first.shape[1:])
    y = labels.new_zeros(means, *labels.shape[1:])
    size = torch.zeros(means, dtype=torch.int64)
    groups = min(means, len(split) // of)
    if groups:
        shuffled = torch.randperm(len(split), generator=gen)
        for i, rows in enumerate(shuffled.tensor_split(groups)):
            for some in torch.split(rows, ROWS):
                x[i] += split.x(some).sum(0) / len(rows)
            y[i] = labels[rows].mean(0)
            size[i] = len(rows)
    return {"x": x, "y": y, "size": size}
