"""How inputs are normalised: which way, and by which mean and deviation.

A source says which way is wanted; the numbers follow when its rows are divided, because mean and
deviation are those of training rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedloom.data.partition.draw import Ints

Normalize = Literal["half", "channel", "site", "none"]
"""half: mean and deviation 0.5. channel: those of each channel (each column of a table) over the
training rows of all clients. site: every client by its own training rows. none: as they are."""

_CHUNK = 2048  # rows read at a time from a memory map
_CONSTANT = 1e-7  # of its mean: a deviation that 32 bits cannot hold
_BYTE = 255.0  # pixels of one byte go from 0 to 1 first


@dataclass(frozen=True)
class Scaling:
    """Mean and deviation, one for all channels or one per channel (per column of a table).

    They are of `x / 255` where `x` is uint8, of `x` where it is float32.

    >>> Scaling.over(np.array([[0.0], [2.0], [100.0]], dtype=np.float32), np.array([0, 1]))
    Scaling(mean=(1.0,), std=(1.0,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def over(cls, x: np.ndarray, rows: Ints) -> Self:
        """Mean and deviation of each channel over these rows."""
        unit, axes = _BYTE if x.dtype == np.uint8 else 1.0, (0, *range(2, x.ndim))
        numbers = len(rows) * int(np.prod(x.shape[2:]))

        def average(power: int, centre: np.ndarray) -> np.ndarray:
            total = np.zeros(x.shape[1])
            for start in range(0, len(rows), _CHUNK):
                part = x[rows[start : start + _CHUNK]].astype(np.float64) / unit - centre
                total += (part**power).sum(axis=axes)
            return total / numbers

        per_channel = (-1, *[1] * (x.ndim - 2))
        mean = average(1, np.zeros(1))
        std = np.sqrt(average(2, mean.reshape(per_channel)))
        # A column that is constant, as far as rounding lets one tell, is only centred.
        std[std <= _CONSTANT * np.abs(mean)] = 1.0
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def factors(self, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """`scale` and `offset` that normalise raw inputs in one go: `x * scale + offset`."""
        per_channel = (-1, *[1] * (x.ndim - 2))
        std = torch.tensor(self.std).view(per_channel)
        unit = _BYTE if x.dtype == torch.uint8 else 1.0
        scale, offset = 1 / (unit * std), -torch.tensor(self.mean).view(per_channel) / std
        if scale.numel() == offset.numel() == 1:
            return scale.item(), offset.item()
        return scale, offset


HALF, AS_IS = Scaling((0.5,), (0.5,)), Scaling((0.0,), (1.0,))
