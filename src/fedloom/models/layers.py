"""What several networks share: cutting a trunk into stages, and layers that know their own start.

A layer's initialisation is in its `reset_parameters`, because `Net.fresh` calls it to draw another
start; values set from outside would be lost then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.errors import BadInput

Stages = Literal["body", "fine"]
"""`body`: everything before the head is one stage; `fine`: every named part is a stage."""


def chain(
    shape: tuple[int, ...], parts: Mapping[str, nn.Module], head: nn.Module, stages: Stages = "body"
) -> Net:
    """Named parts, then the head.

    >>> parts = {"fc1": nn.Linear(4, 3), "fc2": nn.Linear(3, 3)}
    >>> list(chain((4,), parts, nn.Linear(3, 2)).reads)
    ['body', 'head']
    >>> list(chain((4,), parts, nn.Linear(3, 2), "fine").reads)
    ['fc1', 'fc2', 'head']
    """
    if stages == "fine":
        return Net(shape, **parts, head=head)
    if stages != "body":
        raise BadInput(f"stages is 'body' (one stage before the head) or 'fine', not {stages!r}")
    return Net(shape, body=nn.Sequential(OrderedDict(parts)), head=head)


def require_image(model: str, shape: tuple[int, ...], least: int, instead: str) -> None:
    """Refuses an input that is no image, or one that shrinks to nothing inside the network."""
    if len(shape) != 3:
        raise BadInput(
            f"{model} takes images [channels, height, width], not inputs of shape {shape}; "
            f"for tables and vectors use mlp"
        )
    if min(shape[1:]) < least:
        raise BadInput(
            f"{model} needs images of at least {least}x{least} pixels, these are "
            f"{shape[1]}x{shape[2]}; use {instead}"
        )


def width_of(trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """The number of values a trunk makes of one input."""
    training = trunk.training
    with torch.no_grad():
        width: int = trunk.eval()(torch.zeros(1, *shape)).numel()
    trunk.train(training)
    return width


def perceptron(width_in: int, *widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in pairwise((width_in, *widths)):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class HeConv2d(nn.Conv2d):
    """A convolution that starts as He et al. (2015) have it: normal by fan-out, bias zero."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Translation(nn.Module):
    """Adds one trainable tensor of one sample's shape to every sample; zero at the start."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(shape))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.vector)

    def forward(self, z: Tensor) -> Tensor:
        return z + self.vector

    def side_by_side(self, z: Tensor) -> Tensor:
        """The same of several clients at once (`core.batched_layers`)."""
        return z + self.vector[:, None]
