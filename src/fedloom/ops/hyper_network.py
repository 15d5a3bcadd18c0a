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
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out, dtype=dtype), nn.ReLU()]
    layers.append(nn.Linear(sizes[-1], out, dtype=dtype))
    return nn.Sequential(*layers)


def vector_jacobian_product(function: Callable[[Tree], Tensor], at: Tree, vector: Tensor) -> Tree:
    """J' v, where J is the Jacobian of a function of a tree; one tensor for each of the tree's.

    >>> point = {"a": torch.tensor(3.0), "b": torch.tensor(1.0)}
    >>> vector_jacobian_product(lambda p: p["a"] ** 2 + p["b"], point, torch.tensor(0.5))
    {'a': tensor(3.), 'b': tensor(0.5000)}
    """
    with torch.enable_grad():
        leaves = {k: v.detach().clone().requires_grad_() for k, v in at.items()}
        value = function(leaves)
    products = torch.autograd.grad(value, list(leaves.values()), vector)
    return dict(zip(at, products, strict=True))
