"""Rows of several inputs, or of unlike length, as flat rows of numbers.

Between the data and the network (batches, engines, messages, files) a row stays one row of one
tensor, [n, width]. `Field`s say how it divides: the numbers of every input one after another, and
behind an input of unlike length how long the row is. Where a network begins, a row is taken apart
again (`fedloom.core.flat_rows`). Token ids and lengths are exact: float32 holds every whole number
to 2**24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from fedloom.errors import BadInput

FieldKind = Literal["image", "signal", "table", "text"]
LENGTHS = "_lengths"
"""Behind the name of an input: how long each row of it is."""
MOST_WHOLE = 2**24
"""Whole numbers up to this are exact in float32."""


@dataclass(frozen=True)
class Field:
    """One input of a network.

    >>> notes = Field("notes", "text", (20,), time=0, vocabulary=1000)
    >>> notes.width, notes.longest, notes.channels
    (21, 20, 0)
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "strict": False}
    """In cards and schemas, which strangers write: no other keys."""

    name: str
    """The argument of a network's `forward`; a number is the argument's position."""
    kind: FieldKind
    shape: tuple[int, ...]
    """Of one row, filled up to the longest where rows are of unlike length."""
    time: int | None = None
    """The axis along which rows are of unlike length."""
    pixels: bool = False
    """Numbers from 0 to 255, which are divided by 255 first."""
    vocabulary: int = 0
    """Of text: ids are below this."""

    def __post_init__(self) -> None:
        axes = {"image": (3,), "signal": (1, 2), "table": (1,), "text": (1,)}[self.kind]
        fits = len(self.shape) in axes and min(self.shape) > 0
        if not fits or (self.time is not None and not 0 <= self.time < len(self.shape)):
            raise BadInput(f"input {self.name!r} cannot be {self.kind} of shape {self.shape}")
        if (self.kind == "text") != (self.vocabulary > 0) or self.vocabulary > MOST_WHOLE:
            raise BadInput(
                f"input {self.name!r}: text has a vocabulary of 1 to {MOST_WHOLE} ids and other"
                f" inputs none, not {self.vocabulary}"
            )

    @property
    def numbers(self) -> int:
        """How many numbers one row has, without its length."""
        return prod(self.shape)

    @property
    def width(self) -> int:
        """The same with its length, where it has one."""
        return self.numbers + (self.time is not None)

    @property
    def longest(self) -> int:
        """The most positions that a row may have; 0 where all rows are alike."""
        return 0 if self.time is None else self.shape[self.time]

    @property
    def channel_axis(self) -> int | None:
        """The axis whose parts are normalised each by its own mean; None: there is one part."""
        if self.time is None:
            return 0
        return 1 - self.time if len(self.shape) == 2 else None

    @property
    def channels(self) -> int:
        """How many means and deviations it is normalised by; token ids by none."""
        if self.kind == "text":
            return 0
        return 1 if self.channel_axis is None else self.shape[self.channel_axis]

    def __str__(self) -> str:
        unlike = f", up to {self.longest} positions" if self.time is not None else ""
        return f"{self.name}: {self.kind} {list(self.shape)}{unlike}"


Fields = tuple[Field, ...]


def width(fields: Sequence[Field]) -> int:
    """How many numbers a flat row has."""
    return sum(field.width for field in fields)


def placed(fields: Sequence[Field]) -> Iterator[tuple[Field, slice, int | None]]:
    """Every input with the place of its numbers in a flat row, and that of its length."""
    start = 0
    for field in fields:
        end = start + field.numbers
        yield field, slice(start, end), None if field.time is None else end
        start += field.width


def not_numbers(fields: Fields) -> str:
    """What keeps flat rows from being averaged or made of noise; empty where nothing does."""
    if any(field.kind == "text" for field in fields):
        return "token ids"
    return "rows of unlike length" if any(field.time is not None for field in fields) else ""
