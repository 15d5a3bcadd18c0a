"""Fully connected networks; they flatten whatever input they get."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Literal

from torch import nn

from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.models import models
from fedloom.models.gaussian import stochastic


@models
def mlp(
    shape: tuple[int, ...],
    classes: int,
    hidden: tuple[int, ...] = (64, 32),
    norm: Literal["none", "batch"] | None = None,
) -> Net:
    """Linear layers with ReLU, for the 8x8 digits and for tables; `hidden=[]` is a linear model.

    `norm=batch` puts BatchNorm before every ReLU.

    >>> net = mlp((1, 8, 8), 10)
    >>> net.shape_of(net.feature)
    torch.Size([32])
    """
    if not isinstance(hidden, tuple | list) or any(not isinstance(h, int) or h < 1 for h in hidden):
        raise BadInput(f"hidden={hidden!r} is not a list of widths; write hidden=[64, 32]")
    if norm not in (None, "none", "batch"):
        raise BadInput(f"norm={norm!r} is unknown to mlp; use none or batch")
    width = (prod(shape), *hidden)[-1]
    trunk = _trunk(shape, tuple(hidden), norm == "batch")
    return Net(shape, body=trunk, head=nn.Linear(width, classes))


@models
def mlp_fedcr(shape: tuple[int, ...], classes: int, gaussian: int = 0, samples: int = 18) -> Net:
    """FedCR's network for EMNIST-L (Tables 7 and 8): 784-1024-1024, then the head.

    FedCR adds its Gaussian layer itself. `gaussian=V` builds it in, as stages `gauss` and
    `sample`, for other methods on the same stochastic network.
    """
    return stochastic(shape, _trunk(shape, (1024, 1024)), 1024, classes, gaussian, samples)


def _trunk(
    shape: tuple[int, ...], hidden: tuple[int, ...], batch_norm: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width in pairwise((prod(shape), *hidden)):
        norm = [nn.BatchNorm1d(width)] if batch_norm else []
        layers += [nn.Linear(width_in, width), *norm, nn.ReLU()]
    return nn.Sequential(*layers)
