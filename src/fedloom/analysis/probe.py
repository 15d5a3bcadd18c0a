"""What a probe is: a classifier that tells how much of the labels a representation gives away."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from fedloom.errors import BadInput, UnknownName

Fitted: TypeAlias = Callable[[Tensor], Tensor]
"""Prepared rows [m, d] to log-probabilities [m, C]."""

Whitening: TypeAlias = Literal["scalar", "dimension"]

CONSTANT = 1e-9
"""A spread this small beside the values is rounding: float32 features carry seven digits."""


class Probe(Protocol):
    """Fitted anew for every training size."""

    @property
    def seeds(self) -> int:
        """How many subsets of each size the loss is averaged over."""

    @property
    def nested(self) -> bool:
        """Whether a smaller subset is a prefix of the larger one, or drawn afresh."""

    def prepare(self, x: Tensor, pool: int, trained: int) -> Tensor:
        """All rows as this probe reads them; only the first `pool` rows set the scale, and only the
        first `trained` will be trained on."""

    def fit(self, x: Tensor, y: Tensor, classes: int, key: Hashable) -> Fitted:
        """Trained on prepared rows; equal keys give equal results."""


def whitened(x: Tensor, pool: int, by: Whitening) -> Tensor:
    """(x - mean) / standard deviation, one of each over all entries or one per dimension.

    Both come from the first `pool` rows. What is constant there becomes zero there.

    >>> whitened(torch.tensor([[0.0, 4.0], [4.0, 8.0], [9.0, 9.0]]), 2, "dimension")
    tensor([[-1.0000, -1.0000],
            [ 1.0000,  1.0000],
            [ 3.5000,  1.5000]])
    """
    if by not in ("scalar", "dimension"):
        raise UnknownName("whitening", by, ["scalar", "dimension"])
    known = x[:pool]
    over = (0,) if by == "dimension" else (0, 1)
    mean, largest = known.mean(over), known.abs().amax(over)
    moved = x - mean
    # A norm over rows takes thrice as long as squares and their mean.
    spread = moved[:pool].square().mean(over).sqrt()
    return moved.div_(torch.where(spread > CONSTANT * largest, spread, 1.0))


def positive(**settings: float) -> None:
    """Raises for the first setting that is not above zero."""
    for name, value in settings.items():
        if not value > 0:
            raise BadInput(f"a probe's {name} is {value}; it must be above zero")
