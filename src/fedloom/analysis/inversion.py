"""Inputs by search: those whose gradient, or whose features, are what was sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.optimizers import make_optimizer
from fedloom.core.phase import Opt
from fedloom.core.rng import generator
from fedloom.errors import BadInput

Gradient = Callable[[Tensor], Sequence[Tensor]]
"""Inputs [n, *shape] -> the tensors of their gradient, with a graph (`create_graph=True`)."""
Features = Callable[[Tensor], Tensor]
"""Inputs [n, *shape] -> features [n, ...], each row's own."""


@dataclass(frozen=True)
class Search:
    """How inputs are searched: Adam from random starts inside a box, at a rate that falls to zero.

    `smooth` weighs the total variation of images, which natural ones have little of; other inputs
    have none. `low` and `high` are the range of inputs, which whoever normalises them knows.
    """

    steps: int = 300
    lr: float = 0.1
    smooth: float = 0.0
    low: float = -1.0
    high: float = 1.0
    restarts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.restarts) < 1 or self.lr <= 0 or self.low >= self.high:
            raise BadInput(
                "a search takes at least one step and one start, a rate above 0 and low < high"
            )


PLAIN = Search()


@dataclass(frozen=True, eq=False)
class Inverted:
    """What a search found."""

    rows: Tensor
    """[n, *shape]."""
    mismatch: Tensor
    """What is left of the difference: of an update 1 - cosine, one number; of features the squared
    distance over the target's squared length, for each row."""


def invert_update(
    gradient: Gradient,
    update: Sequence[Tensor],
    rows: int,
    shape: tuple[int, ...],
    search: Search = PLAIN,
) -> Inverted:
    """So many inputs whose gradient points where an update does (Geiping et al., 2020).

    `update` are the tensors as the server had them less as they came back, in the order of
    `gradient`; their length, and so the learning rate, does not matter. Of the gradient's signs
    alone are steps made, as there. Of several starts the one with the least mismatch is given back.

    >>> best = invert_update(lambda x: [x.sum(0)], [torch.tensor([3.0, -1.0])], 1, (2,))
    >>> round(float(best.rows[0, 0] / best.rows[0, 1]), 1)
    -3.0
    """
    wanted = [tensor.detach() for tensor in update]
    length = _norm(wanted)
    if not float(length):
        raise BadInput("the update is zero and points nowhere; there is nothing to invert")

    def mismatch(x: Tensor) -> Tensor:
        found = gradient(x)
        inner = torch.stack([(a * b).sum() for a, b in zip(found, wanted, strict=True)]).sum()
        return (1 - inner / (_norm(found) * length + 1e-12)).reshape(1)

    return min(
        (
            _searched(mismatch, (rows, *shape), search, start, signs=True)
            for start in range(search.restarts)
        ),
        key=lambda found: float(found.mismatch),
    )


def invert_features(
    features: Features, target: Tensor, shape: tuple[int, ...], search: Search = PLAIN
) -> Inverted:
    """One input for each row of target features [n, ...], e.g. prototypes, means, or what a dense
    layer behind convolutions read.

    Rows are searched by themselves, so the best of several starts is each row's own.

    >>> found = invert_features(lambda x: 2 * x, torch.tensor([[1.0, -0.5]]), (2,))
    >>> found.rows.round(decimals=2)
    tensor([[ 0.5000, -0.2500]])
    """
    wanted = target.detach().flatten(1)
    size = wanted.square().sum(1).clamp_min(1e-12)

    def mismatch(x: Tensor) -> Tensor:
        return (features(x).flatten(1) - wanted).square().sum(1) / size

    found = [
        _searched(mismatch, (len(wanted), *shape), search, start)
        for start in range(search.restarts)
    ]
    best = torch.stack([each.mismatch for each in found]).argmin(0)
    rows = torch.stack([each.rows for each in found])
    across = torch.arange(len(wanted))
    return Inverted(rows[best, across], torch.stack([e.mismatch for e in found])[best, across])


def total_variation(x: Tensor) -> Tensor:
    """Of each image [n, c, h, w]: mean absolute differences of neighbours; of other inputs 0.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
    tensor([1.])
    """
    if x.ndim != 4:
        return x.new_zeros(len(x))
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1)
    return across.mean(1) + down.mean(1)


def _searched(
    mismatch: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    search: Search,
    start: int,
    signs: bool = False,
) -> Inverted:
    gen = generator(search.seed, "search", start)
    middle, width = (search.low + search.high) / 2, (search.high - search.low) / 2
    x = (middle + width * 0.3 * torch.randn(shape, generator=gen)).clamp_(search.low, search.high)
    x.requires_grad_(True)
    adam = make_optimizer([x], Opt("adam", lr=search.lr * width))
    for step in range(search.steps):
        loss = mismatch(x).sum() + search.smooth * total_variation(x).sum()
        (slope,) = torch.autograd.grad(loss, [x])
        falling = (1 + math.cos(math.pi * step / search.steps)) / 2
        adam.opt = Opt("adam", lr=search.lr * width * max(falling, 1e-3))
        adam.step([slope.sign() if signs else slope])
        with torch.no_grad():
            x.clamp_(search.low, search.high)
    return Inverted(x.detach(), mismatch(x).detach())


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
