"""Networks that make the weights of other networks, and how they learn from those weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree


def hyper_network(dim: int, width: int, depth: int, out: int, dtype: torch.dtype) -> nn.Sequential:
    """`depth` hidden layers with ReLU, then a linear layer that makes all weights.

    >>> len(hyper_network(2, width=4, depth=3, out=10, dtype=torch.float32))
    7
    """
    sizes = [dim, *[width] * depth]
    hidden = [(nn.Linear(a, b, dtype=dtype), nn.ReLU()) for a, b in pairwise(sizes)]
    last = nn.Linear(sizes[-1], out, dtype=dtype)
    return nn.Sequential(*(layer for pair in hidden for layer in pair), last)


def pulled_back(make: Callable[[Tree], Tensor], phi: Tree, change: Tensor) -> Tree:
    """J' change, J being the Jacobian of `make` at phi: the vector-Jacobian product, by tensor.

    >>> phi = {"a": torch.tensor(3.0), "b": torch.tensor(1.0)}
    >>> pulled_back(lambda p: p["a"] ** 2 + p["b"], phi, torch.tensor(0.5))
    {'a': tensor(3.), 'b': tensor(0.5000)}
    """
    with torch.enable_grad():
        leaves = {k: v.detach().clone().requires_grad_() for k, v in phi.items()}
        made = make(leaves)
    return dict(zip(phi, torch.autograd.grad(made, list(leaves.values()), change), strict=True))
