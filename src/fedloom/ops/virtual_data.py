"""Labelled noise: what an untrained generator makes of a seed, the same at every site."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.rng import rng_scope

LATENT = 64
SPREAD = 0.3
"""Standard deviation of a class's latent codes about its centre, whose own entries are N(0, 1)."""


@lru_cache(maxsize=1)
def virtual_data(
    shape: tuple[int, ...], classes: int, per_class: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Inputs [classes * per_class, *shape] of mean 0 and deviation 1, and their labels.

    A class is a cloud of latent codes; a random network that upsamples turns codes into images
    (inputs that are no images: a random perceptron). Nothing of it is ever trained. The last call
    is remembered, so that a process makes its data once.

    >>> x, y = virtual_data((1, 8, 8), classes=3, per_class=2, seed=0)
    >>> tuple(x.shape), y.tolist()
    ((6, 1, 8, 8), [0, 1, 2, 0, 1, 2])
    """
    y = torch.arange(classes).repeat(per_class)
    with rng_scope("virtual data", seed, shape, classes, per_class), torch.no_grad():
        generator = _upsampling(shape) if len(shape) == 3 else _perceptron(shape)
        codes = torch.randn(classes, LATENT)[y] + SPREAD * torch.randn(len(y), LATENT)
        x = torch.cat([generator(part) for part in torch.split(codes, 256)])
    if len(shape) == 3 and x.shape[2:] != shape[1:]:
        x = F.interpolate(x, size=shape[1:], mode="bilinear")
    return (x - x.mean()) / x.std(), y


def _upsampling(shape: tuple[int, ...]) -> nn.Module:
    """From 4x4 up, doubling, until no side is too short."""
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
