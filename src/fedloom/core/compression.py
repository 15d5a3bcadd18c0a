"""Smaller uploads: what a client learned, in fewer bytes. `compression="quantize(bits=8)"`.

Only the change of the shared model's parameters is compressed: value minus what the client
received, which the server knows, too. All else travels as it is: integers and tensors of a few
numbers, for which it does not pay; running statistics, because a variance must not fall below zero;
what a method sends beside the model (means, prototypes, counts), because there a number is no
change; and the special rounds of a method, which are few and exact.

A compressed tensor `w` stands in the upload as tensors of its own, `w@levels` and `w@scale`, or
`w@gaps` and `w@values`. So ledger, journal, digests and a site's gate see what leaves, with its
true size; `Round` restores the numbers before any part reads them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from fedloom.core.net import METHOD
from fedloom.core.tree import State, Tree
from fedloom.errors import BadInput
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

compressions = Registry("compression")
"""Ways to make uploads smaller, by name."""

RESIDUAL = "@residual"
"""The slice in which a client keeps what its uploads left out; no part can have this name."""
MARK = "@"
"""Between the name of a tensor and the name of a part of its compressed form."""
FEWEST = 64
"""Numbers of a tensor from which on it is compressed."""


@dataclass(frozen=True)
class Compression:
    """How an upload is written. One of these in an expression: `top_k(share=0.1)`."""

    name: ClassVar[str]
    feeds_back: ClassVar[bool] = False
    """What was left out is kept at the client and added to its next upload."""

    def compressed(
        self, up: State, received: State, parameters: Container[str], left: Tree, gen: Generator
    ) -> tuple[State, Tree]:
        """The upload as it leaves, and what the client keeps of it for the next one; `left` is what
        earlier uploads left out."""
        return up, left

    def restored(self, up: State, sent: State) -> State:
        """The upload with its numbers; `sent` is what this client received."""
        return up

    def __str__(self) -> str:
        return written(self, self.name)


@compressions
@dataclass(frozen=True)
class NoCompression(Compression):
    """Uploads as the method makes them."""

    name: ClassVar[str] = "none"


NONE = NoCompression()


@dataclass(frozen=True)
class _OfChanges(Compression):
    """The change of each large parameter as tensors of its own."""

    def compressed(
        self, up: State, received: State, parameters: Container[str], left: Tree, gen: Generator
    ) -> tuple[State, Tree]:
        if METHOD not in up:
            return up, left
        start, left, tree = received.get(METHOD, {}), dict(left), Tree()
        for key, value in up[METHOD].items():
            if key not in parameters or not compressible(value, start.get(key)):
                tree[key] = value
                continue
            change = (value.double() - start[key].double()).flatten()
            if key in left:
                change += left[key].double().flatten()
            parts = self.encode(change, gen)
            tree |= {f"{key}{MARK}{part}": tensor for part, tensor in parts.items()}
            if self.feeds_back:
                remains = change - self.decode(parts, len(change))
                left[key] = remains.reshape(value.shape).to(value.dtype)
        return {**up, METHOD: tree}, left

    def restored(self, up: State, sent: State) -> State:
        start, tree, parts_of = sent.get(METHOD, {}), Tree(), dict[str, Tree]()
        for name, tensor in up.get(METHOD, {}).items():
            key, mark, part = name.partition(MARK)
            if mark:
                parts_of.setdefault(key, {})[part] = tensor
            tree[key] = tensor  # in its place; the compressed ones get their numbers below
        for key, parts in parts_of.items():
            if key not in start:
                raise BadInput(f"an upload has the change of {key!r}, which was not sent")
            before = start[key].detach().cpu()
            change = self.decode(parts, before.numel()).reshape(before.shape)
            tree[key] = (before.double() + change).to(before.dtype)
        return {**up, METHOD: tree} if parts_of else up

    @abstractmethod
    def encode(self, change: Tensor, gen: Generator) -> Tree:
        """A row of numbers, in float64, as tensors by the names of parts."""

    @abstractmethod
    def decode(self, parts: Mapping[str, Tensor], numbers: int) -> Tensor:
        """The row of so many numbers that the parts stand for, in float64."""


@compressions
@dataclass(frozen=True)
class Quantize(_OfChanges):
    """Every number in so many bits: a whole multiple of a step, of which each tensor has its own.

    The step is the largest change over 2^(bits - 1) - 1. A number between two multiples becomes
    either, as likely as it is close, so that the mean is right (Alistarh et al., NeurIPS 2017);
    `stochastic=False` takes the nearest, and of two that are equally near the even one.
    """

    name: ClassVar[str] = "quantize"
    bits: int = 8
    stochastic: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise BadInput(f"quantize: bits is from 2 to 8, not {self.bits}")

    @property
    def _most(self) -> int:
        """The largest multiple; the smallest is its negative."""
        return (1 << (self.bits - 1)) - 1

    def encode(self, change: Tensor, gen: Generator) -> Tree:
        scale = (change.abs().max() / self._most).float()  # not finite where a change is not
        multiples = (change / scale.double()).nan_to_num(0.0)  # of 0 / 0 where nothing changed
        if self.stochastic:
            draws = torch.rand(len(change), generator=gen, dtype=torch.float64)
            multiples = (multiples + draws).floor()
        else:
            multiples = multiples.round()
        levels = (multiples.clamp(-self._most, self._most) + self._most).to(torch.uint8)
        return {"levels": _packed(levels, self.bits), "scale": scale}

    def decode(self, parts: Mapping[str, Tensor], numbers: int) -> Tensor:
        levels = _unpacked(parts["levels"], self.bits, numbers)
        return (levels.double() - self._most) * parts["scale"].double()


@compressions
@dataclass(frozen=True)
class TopK(_OfChanges):
    """Of each tensor the `share` of numbers that changed most, rounded up; of equal ones the first.

    What is left out is kept by the client and added to its next change (Stich et al., NeurIPS
    2018), so that nothing is lost, only late.
    """

    name: ClassVar[str] = "top_k"
    feeds_back: ClassVar[bool] = True
    share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadInput(f"top_k: share is above 0 and at most 1, not {self.share}")

    def encode(self, change: Tensor, gen: Generator) -> Tree:
        size = change.abs().nan_to_num(nan=torch.inf)  # what is no number goes out, to be seen
        count = ceil(self.share * len(change) - 1e-9)  # 0.07 * 100 is above 7
        places = _largest(size, max(1, count))
        gaps = places.diff(prepend=places.new_tensor([-1]))  # small numbers, which zstd likes
        return {"gaps": gaps.to(_whole(len(change))), "values": change[places].float()}

    def decode(self, parts: Mapping[str, Tensor], numbers: int) -> Tensor:
        places = parts["gaps"].long().cumsum(0) - 1
        if bool((parts["gaps"] < 1).any()) or (len(places) and int(places[-1]) >= numbers):
            raise BadInput(f"an upload changes numbers that a tensor of {numbers} does not have")
        change = torch.zeros(numbers, dtype=torch.float64)
        change[places] = parts["values"].double()
        return change


def parse_compression(text: str) -> Compression:
    """From an expression.

    >>> parse_compression("quantize(bits=4)")
    Quantize(bits=4, stochastic=True)
    """
    compression: Compression = compressions.build(parse_one(text))
    return compression


def compressible(value: Tensor, received: Tensor | None) -> bool:
    """Does a parameter travel as a change?"""
    return (
        value.is_floating_point()
        and value.numel() >= FEWEST
        and received is not None
        and received.shape == value.shape
    )


def _largest(size: Tensor, count: int) -> Tensor:
    """Places of the largest numbers, ascending. (torch's topk may choose any of equal ones.)"""
    least = size.kthvalue(len(size) - count + 1).values
    above = size > least
    equal = (size == least).nonzero().flatten()[: count - int(above.sum())]
    above[equal] = True
    return above.nonzero().flatten()


def _whole(most: int) -> torch.dtype:
    """The smallest type that holds whole numbers up to this."""
    return torch.int16 if most <= torch.iinfo(torch.int16).max else torch.int32


def _packed(levels: Tensor, bits: int) -> Tensor:
    """Numbers of so many bits without gaps between them; the last byte is filled up with zeros."""
    if bits == 8:
        return levels
    every_bit = np.unpackbits(levels.numpy()[:, None], axis=1)
    return torch.from_numpy(np.packbits(every_bit[:, 8 - bits :]))


def _unpacked(packed: Tensor, bits: int, numbers: int) -> Tensor:
    """The reverse of `_packed`."""
    if packed.dtype != torch.uint8 or len(packed) != ceil(numbers * bits / 8):
        raise BadInput(f"an upload has no {numbers} numbers of {bits} bits where it should")
    if bits == 8:
        return packed
    used = np.unpackbits(packed.numpy(), count=numbers * bits).reshape(numbers, bits)
    shifts = 2 ** np.arange(bits - 1, -1, -1, dtype=np.uint8)
    return torch.from_numpy((used * shifts).sum(1, dtype=np.uint8))
