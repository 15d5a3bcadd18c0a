"""A projector between a network's body and its head, so that any method has DualFed's network."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedloom.core.net import Net
from fedloom.errors import BadInput

PROJECTOR = "projector"
"""The stage's name."""


def projector(width: int, hidden: int, depth: int = 2, batch_norm: bool = True) -> nn.Sequential:
    """`depth` linear layers, ReLU and BatchNorm between them, BatchNorm last."""
    sizes = [width, *[hidden] * (depth - 1), width]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < depth - 1:
            layers.append(nn.ReLU())
        if batch_norm:
            layers.append(nn.BatchNorm1d(b))
    return nn.Sequential(*layers)


def add_projector(net: Net, hidden: int) -> Net:
    """The network with the stage `projector` under its head, as wide as the feature.

    Linear(d, hidden), ReLU, BatchNorm, Linear(hidden, d), BatchNorm (DualFed, section 5.3). What it
    makes is the representation from then on; body and head begin as they do without it.

    >>> net = add_projector(Net((4,), body=nn.Linear(4, 3), head=nn.Linear(3, 2)), hidden=8)
    >>> net.reads
    {'body': 'input', 'head': 'projector', 'projector': 'body'}
    """
    if hidden < 1:
        raise BadInput(f"projector={hidden} is no width; use 1 or more, or 0 for no projector")
    shape = net.shape_of(net.feature)
    if len(shape) != 1:
        raise BadInput(
            f"projector={hidden} needs features that are vectors, and the stage {net.feature!r} of"
            f" this network gives {tuple(shape)}; leave it out"
        )
    net.insert(PROJECTOR, projector(shape.numel(), hidden))
    net.representation = net.feature
    return net
