"""Numbers of every client as columns, and their means: what most results are made of.

A diagnostic declares its numbers once, as a dataclass that is generic in what a number is. Of one
client that is a `float`, of all clients a `Column`, and over clients a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeVar

from fedloom.record import Number

T = TypeVar("T")
Side = Literal["before", "after"]
SIDES: tuple[Side, Side] = ("before", "after")
"""Local training, which the models of a client are looked at before and after."""
Column = tuple[Number, ...]
"""A number of each client; NaN where it is not defined."""
Counts = tuple[int, ...]


@dataclass(frozen=True)
class Sides(Generic[T]):
    """The same before and after local training.

    >>> Sides(before=1.0, after=2.0)["after"]
    2.0
    """

    before: T
    after: T

    def __getitem__(self, side: Side) -> T:
        return self.before if side == "before" else self.after


def columns_of(clients: Sequence[Any]) -> Any:
    """Clients' numbers, all of one dataclass, as that dataclass with a column in each field.

    >>> columns_of([Sides(1, 2), Sides(3, 4)])
    Sides(before=(1, 3), after=(2, 4))
    """
    return type(clients[0])(**by_field(clients))


def by_field(clients: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Field -> its value of each client.

    >>> by_field([Sides(1, 2), Sides(3, 4)])
    {'before': (1, 3), 'after': (2, 4)}
    """
    return {f.name: tuple(getattr(c, f.name) for c in clients) for f in fields(clients[0])}


def means_of(clients: Sequence[Any]) -> Any:
    """Clients' numbers, all of one dataclass, as that dataclass with a mean in each field.

    >>> means_of([Sides(1.0, 2.0), Sides(math.nan, 4.0)])
    Sides(before=1.0, after=3.0)
    """
    return type(clients[0])(**{name: mean(column) for name, column in by_field(clients).items()})


def mean(values: Iterable[float]) -> float:
    """Of what is not NaN; NaN if nothing is.

    >>> mean([1.0, math.nan, 3.0]), mean([])
    (2.0, nan)
    """
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
