"""Means of a client's rows, inputs and labels alike: what mean-augmented learning exchanges."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fedloom.core.data import Split
from fedloom.ops.soft_labels import soft_labels

ROWS = 512
"""Inputs held at a time."""


def mean_data(split: Split, means: int, of: int, classes: int, gen: Generator) -> dict[str, Tensor]:
    """Means of disjoint random groups that together hold all rows: `x` [means, ...], `y`
    [means, K] and `size` [means], the number of rows in each.

    No group has fewer than `of` rows; where the rows do not suffice for all groups, the last ones
    have size zero.
    """
    first = split.x(torch.tensor([0]))
    labels = soft_labels(split.y, classes, first)
    found = {
        "x": first.new_zeros(means, *first.shape[1:]),
        "y": labels.new_zeros(means, *labels.shape[1:]),
        "size": torch.zeros(means, dtype=torch.int64),
    }
    if count := min(means, len(split) // of):
        shuffled = torch.randperm(len(split), generator=gen)
        for i, rows in enumerate(shuffled.tensor_split(count)):
            for part in torch.split(rows, ROWS):
                found["x"][i] += split.x(part).sum(0) / len(rows)
            found["y"][i] = labels[rows].mean(0)
            found["size"][i] = len(rows)
    return found
