"""Several models of one shape as one tree: every tensor gains a first axis, the model's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.core.tree import Tree, place


def stack_models(models: Sequence[Mapping[str, Tensor]]) -> Tree:
    """Trees with the same keys as one.

    >>> stack_models([{"w": torch.zeros(2)}, {"w": torch.ones(2)}])["w"].shape
    torch.Size([2, 2])
    """
    return {k: torch.stack([model[k] for model in models]) for k in models[0]}


def pick_model(stack: Mapping[str, Tensor], j: int) -> Tree:
    """Model number j of a stack, in the memory layout in which a site computes; shares storage with
    the stack where it can.

    >>> pick_model({"w": torch.eye(2)}, 1)
    {'w': tensor([0., 1.])}
    """
    return {k: place(v[j], v.device) for k, v in stack.items()}
