"""Where the noise of `privacy` comes from: in a simulation from the run's seed, at a site from a
secret of its own.

Whoever knows the seed of a run can make its noise again and take it off. In a simulation all is in
one hand anyway, and the same seed must give the same bytes; at a site nobody else may know it. Nor
may it be drawn anew when the same is asked again: the mean of many answers would be without noise.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import shake_256
from itertools import count
from typing import Protocol

import torch
from torch import Generator, Tensor

from fedloom.core.message import Plan

BITS = 52
"""Of each uniform number that a secret gives: with the half that is added, all that a float64 below
1 holds."""


class NoiseSource(Protocol):
    """Standard normal numbers."""

    def normal(self, purpose: Hashable, value: Tensor) -> Tensor:
        """What is added to a value, in float64 and where it is; the draws of one purpose go on
        where the last ones ended."""


class SeededNoise:
    """The same in every repetition of a run; other numbers for each client, round and purpose."""

    def __init__(self, plan: Plan, cid: int) -> None:
        self._plan, self._cid = plan, cid
        self._generators: dict[Hashable, Generator] = {}

    def normal(self, purpose: Hashable, value: Tensor) -> Tensor:
        if purpose not in self._generators:
            self._generators[purpose] = self._plan.gen(self._cid, ("privacy", purpose))
        drawn = torch.randn(
            value.shape, generator=self._generators[purpose], dtype=torch.float64, device="cpu"
        )
        return drawn.to(value.device)


class SecretNoise:
    """From a key that only the site knows: a keyed hash (SHAKE-256) of what is asked and of the
    very value that the noise is for, by the inverse of the normal distribution.

    The same order with the same rows gets the same answer; anything else gets noise that has
    nothing to do with it.
    """

    def __init__(self, key: bytes, order: str) -> None:
        self._begun = shake_256(len(key).to_bytes(8, "big") + key + order.encode())
        self._draws = count()

    def normal(self, purpose: Hashable, value: Tensor) -> Tensor:
        stream = self._begun.copy()
        stream.update(
            f"{next(self._draws)} {purpose!r} {tuple(value.shape)} {value.dtype} ".encode()
        )
        stream.update(value.detach().cpu().contiguous().numpy().tobytes())
        drawn = bytearray(stream.digest(8 * value.numel()))
        if not drawn:
            return torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        integers = torch.frombuffer(drawn, dtype=torch.int64)
        # Strictly between 0 and 1, where the inverse is finite.
        uniform = (integers.bitwise_and(2**BITS - 1).double() + 0.5) / 2**BITS
        normal: Tensor = torch.special.ndtri(uniform)
        return normal.reshape(value.shape).to(value.device)
