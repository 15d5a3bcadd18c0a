"""Several models of one shape as one tree: every tensor gains a first axis, the model's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.core.tree import Tree, place


def stacked(trees: Sequence[Mapping[str, Tensor]]) -> Tree:
    """Trees with the same keys as one.

    >>> stacked([{"w": torch.zeros(2)}, {"w": torch.ones(2)}])["w"].shape
    torch.Size([2, 2])
    """
    return {k: torch.stack([tree[k] for tree in trees]) for k in trees[0]}


def row(tree: Mapping[str, Tensor], j: int) -> Tree:
    """One of the stacked trees, placed as a site wants it; shares its storage where it can.

    >>> row({"w": torch.eye(2)}, 1)
    {'w': tensor([0., 1.])}
    """
    return {k: place(v[j], v.device) for k, v in tree.items()}
