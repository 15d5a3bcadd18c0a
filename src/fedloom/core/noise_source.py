"""Where the noise of `privacy` comes from: in a simulation from the run's seed, at a site from the
operating system.

Whoever knows the seed of a run can make its noise again and take it off. In a simulation all is in
one hand anyway, and the same seed must give the same bytes; at a site nobody else may know it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Protocol

import torch
from torch import Generator, Tensor

from fedloom.core.message import Plan

BITS = 52
"""Of each uniform number from the operating system: with the half that is added, all that a float64
below 1 holds."""


class NoiseSource(Protocol):
    """Standard normal numbers."""

    def normal(self, purpose: Hashable, like: Tensor) -> Tensor:
        """As many as `like` has, in float64 and where it is; those of one purpose go on where its
        last ones ended."""


class SeededNoise:
    """The same in every repetition of a run; other numbers for each client, round and purpose."""

    def __init__(self, plan: Plan, cid: int) -> None:
        self._plan, self._cid = plan, cid
        self._generators: dict[Hashable, Generator] = {}

    def normal(self, purpose: Hashable, like: Tensor) -> Tensor:
        if purpose not in self._generators:
            self._generators[purpose] = self._plan.gen(self._cid, ("privacy", purpose))
        drawn = torch.randn(
            like.shape, generator=self._generators[purpose], dtype=torch.float64, device="cpu"
        )
        return drawn.to(like.device)


class SystemNoise:
    """From the operating system's secure source, by the inverse of the normal distribution; known
    to nobody and never the same again."""

    def normal(self, purpose: Hashable, like: Tensor) -> Tensor:
        drawn = bytearray(os.urandom(8 * like.numel()))
        integers = torch.frombuffer(drawn, dtype=torch.int64) if drawn else torch.zeros(0)
        # Strictly between 0 and 1, where the inverse is finite.
        uniform = (integers.long().bitwise_and(2**BITS - 1).double() + 0.5) / 2**BITS
        return torch.special.ndtri(uniform).reshape(like.shape).to(like.device)
