"""Code lengths of labels: what a loss at each training size adds up to, in nats and bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log, nan

import numpy as np

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Voita and Titov's block ends, as shares of the samples."""


@dataclass(frozen=True)
class CodeLength:
    """A code for `n` labels and what it is to be compared with; nats unless the name says bits."""

    sizes: tuple[int, ...]
    """Numbers of labels after which the probe is trained again."""
    curve: tuple[float, ...]
    """Mean loss per sample, outside its training samples, of the probe trained on each size."""
    blocks: tuple[float, ...]
    """What the labels up to each size cost, from the size before."""
    classes: int
    entropy: float
    """Entropy of the label frequencies among all rows given, in nats per label."""

    @property
    def n(self) -> int:
        return self.sizes[-1]

    @property
    def nats(self) -> float:
        return sum(self.blocks)

    @property
    def bits(self) -> float:
        return in_bits(self.nats)

    @property
    def per_sample(self) -> float:
        return self.nats / self.n

    @property
    def uniform(self) -> float:
        """Code length of a receiver who takes all classes for equally likely: n ln C."""
        return self.n * log(self.classes)

    @property
    def prior(self) -> float:
        """Code length of a receiver who knows the label frequencies and no features."""
        return self.n * self.entropy

    @property
    def ratio(self) -> float:
        """Part of the uniform code; its inverse is the compression. NaN with a single class."""
        return self.nats / self.uniform if self.classes > 1 else nan

    def at(self, n: int) -> CodeLength:
        """The code for fewer labels: up to the first size that is at least n, else the largest.

        >>> code = CodeLength((10, 20, 40), (1.0, 0.5, 0.1), (10.0, 5.0, 2.0), 4, 1.3)
        >>> code.at(11).n, code.at(11).nats, code.at(99).nats
        (20, 15.0, 17.0)
        """
        count = min(sum(size < n for size in self.sizes) + 1, len(self.sizes))
        trained = count - len(self.sizes) + len(self.curve)
        return replace(
            self,
            sizes=self.sizes[:count],
            curve=self.curve[:trained],
            blocks=self.blocks[:count],
        )


def area(sizes: Sequence[int], curve: Sequence[float]) -> tuple[float, ...]:
    """Blocks of reprieve's code: (n_k - n_(k-1)) max(L(n_k), 0), from zero.

    >>> area([10, 30], [2.0, 0.5])
    (20.0, 10.0)
    """
    return tuple(
        (end - start) * max(loss, 0.0)
        for (start, end), loss in zip(pairwise((0, *sizes)), curve, strict=True)
    )


def online(sizes: Sequence[int], curve: Sequence[float], classes: int) -> tuple[float, ...]:
    """Blocks of the online code: t_1 ln C, then (t_(k+1) - t_k) L(t_k).

    >>> online([10, 30], [2.0], classes=1)
    (0.0, 40.0)
    """
    coded = (
        (end - start) * loss for (start, end), loss in zip(pairwise(sizes), curve, strict=True)
    )
    return (sizes[0] * log(classes), *coded)


def log_sizes(pool: int, points: int = 10) -> tuple[int, ...]:
    """Sizes from 10 to `pool`, evenly spaced on a logarithmic scale and rounded up.

    >>> log_sizes(1125)
    (10, 17, 29, 49, 82, 138, 234, 394, 666, 1125)
    """
    raw = np.logspace(1, np.log10(max(pool, 10)), points)
    # First to nine decimals: an error of rounding must not lift a whole number to the next.
    return tuple(sorted({min(ceil(size), pool) for size in raw.round(9)}))


def fraction_sizes(n: int) -> tuple[int, ...]:
    """Voita and Titov's block ends for n samples, rounded up, each once.

    >>> fraction_sizes(100)
    (1, 2, 4, 7, 13, 25, 50, 100)
    """
    return tuple(sorted({ceil(round(share * n, 9)) for share in FRACTIONS}))


def in_bits(nats: float) -> float:
    """The same code length in bits.

    >>> round(in_bits(log(8)), 12)
    3.0
    """
    return nats / log(2)
