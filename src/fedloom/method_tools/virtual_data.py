"""Labelled noise that an untrained generator makes from a seed, the same at every site."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.rng import rng_scope

LATENT = 64
"""Dimension of the generator's input."""
SPREAD = 0.3
"""Standard deviation of a class's latent codes about its centre, whose own entries are N(0, 1)."""
HELD_NUMBERS = 2**24
"""How many numbers a process holds at most (64 MB). Of a larger data set, inputs are made when they
are asked for."""
MEASURED = 64
"""Mean and deviation are those of this many first inputs."""
PART = 32
"""How many inputs are made at a time."""


class VirtualData:
    """Labelled inputs [classes * per_class, *shape], about mean 0 and deviation 1.

    A class is a cloud of latent codes. A random network turns codes into inputs: an upsampling
    network for images, a perceptron for others. It is never trained.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, per_class: int, seed: int) -> None:
        self.shape = shape
        self.y = torch.arange(classes).repeat(per_class)
        with rng_scope("virtual data", seed, shape, classes, per_class), torch.no_grad():
            self._generator = _upsampling(shape) if len(shape) == 3 else _perceptron(shape)
            centres = torch.randn(classes, LATENT)
            noise = torch.randn(len(self.y), LATENT)
            self._codes = centres[self.y] + SPREAD * noise
        first = self._generate(self._codes[:MEASURED])
        self._mean, self._deviation = first.mean(), first.std()
        small = len(self.y) * math.prod(shape) <= HELD_NUMBERS
        self._held = self._normalize(self._generate(self._codes)) if small else None

    def __len__(self) -> int:
        return len(self.y)

    def x(self, idx: Tensor) -> Tensor:
        """The inputs of these rows."""
        if self._held is not None:
            return self._held[idx]
        return self._normalize(self._generate(self._codes[idx]))

    def _normalize(self, x: Tensor) -> Tensor:
        return (x - self._mean) / self._deviation

    @torch.no_grad()
    def _generate(self, codes: Tensor) -> Tensor:
        parts = torch.split(codes, PART)
        return torch.cat([self._resize(self._generator(part)) for part in parts])

    def _resize(self, x: Tensor) -> Tensor:
        """Scaled down where the sides are not four times a power of two."""
        if x.shape[1:] == self.shape:
            return x
        return F.interpolate(x, size=self.shape[1:], mode="bilinear")


@lru_cache(maxsize=1)
def virtual_data(shape: tuple[int, ...], classes: int, per_class: int, seed: int) -> VirtualData:
    """The virtual data of a run, a function of its seed.

    The last call is remembered, so that a process makes its data once.

    >>> data = virtual_data((1, 8, 8), classes=3, per_class=2, seed=0)
    >>> tuple(data.x(torch.tensor([0, 4])).shape), data.y.tolist()
    ((2, 1, 8, 8), [0, 1, 2, 0, 1, 2])
    """
    return VirtualData(shape, classes, per_class, seed)


def _upsampling(shape: tuple[int, ...]) -> nn.Module:
    """From 4x4 pixels, doubling until no side is too short."""
    width, side = 64, 4
    layers: list[nn.Module] = [nn.Linear(LATENT, width * 16), nn.Unflatten(1, (width, 4, 4))]
    while side < max(shape[1:]):
        conv = nn.Conv2d(width, max(width // 2, 8), 3, padding=1, bias=False)
        layers += [nn.LeakyReLU(0.2), nn.Upsample(scale_factor=2), conv]
        width, side = max(width // 2, 8), 2 * side
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Conv2d(width, shape[0], 3, padding=1))


def _perceptron(shape: tuple[int, ...]) -> nn.Module:
    out = nn.Linear(2 * LATENT, math.prod(shape))
    return nn.Sequential(
        nn.Linear(LATENT, 2 * LATENT), nn.LeakyReLU(0.2), out, nn.Unflatten(1, shape)
    )
