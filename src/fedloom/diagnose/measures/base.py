"""What a measure of a study is: it sees one client after another, then says what it found."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.record import When

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """What a user may choose about single measures."""

    estimator: str = "online"
    """Code of the MDL: online or reprieve."""
    probe: str = "ridge"
    """Classifier of the MDL: ridge or mlp."""


@dataclass(frozen=True)
class Outcome:
    """A finding but for what is the same for all of a study."""

    snapshot: When
    layer: str | None
    data: str
    result: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)


class Measure(ABC):
    """One diagnostic under way; views are not kept, so that memory does not grow with clients."""

    name: ClassVar[str]

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        self.snapshots, self.options = snapshots, options

    @abstractmethod
    def see(self, client: ClientView) -> None:
        """Take from one client what the findings need."""

    @abstractmethod
    def outcomes(self) -> Iterator[Outcome]:
        """What all clients come to."""


class PerClient:
    """A table with a row of numbers before and after training for every client.

    >>> table = PerClient()
    >>> table.add(3, {"value": 1.0}, {"value": 2.0}, n=10)
    >>> table.add(5, {"value": math.nan}, {"value": 4.0}, n=20)
    >>> table.result()["mean"], table.result()["n"]
    ({'before': {'value': 1.0}, 'after': {'value': 3.0}}, [10, 20])
    """

    def __init__(self) -> None:
        self.clients: list[int] = []
        self._parts: dict[str, list[Numbers]] = {"before": [], "after": []}
        self._beside: list[Numbers] = []

    def add(self, cid: int, before: Numbers, after: Numbers, **beside: Any) -> None:
        """One client's numbers, and what belongs to neither."""
        self.clients.append(cid)
        self._parts["before"].append(before)
        self._parts["after"].append(after)
        self._beside.append(beside)

    def result(self) -> dict[str, Any]:
        """Columns parallel to `clients`, and unweighted means over clients that have a value."""
        return {
            "clients": self.clients,
            **columns_of(self._beside),
            **{when: columns_of(rows) for when, rows in self._parts.items()},
            "mean": {when: means_of(rows) for when, rows in self._parts.items()},
        }


def columns_of(rows: Sequence[Numbers]) -> dict[str, list[Any]]:
    """Rows as lists by name.

    >>> columns_of([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}


def means_of(rows: Sequence[Numbers]) -> dict[str, float]:
    """Mean of every column of plain numbers, NaN left out.

    >>> means_of([{"a": 1.0, "b": [1]}, {"a": float("nan"), "b": [2]}])
    {'a': 1.0}
    """
    found = columns_of(rows)
    plain = {k: v for k, v in found.items() if all(isinstance(x, int | float) for x in v)}
    return {key: mean(values) for key, values in plain.items()}


def mean(values: Sequence[float]) -> float:
    """Of what is not NaN.

    >>> mean([1.0, float("nan"), 3.0])
    2.0
    """
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


class LayerMeasure(Measure):
    """A measure inside one client, layer by layer: a table for each layer and data set."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self.tables: dict[tuple[str, str], PerClient] = {}

    def table(self, layer: str, data: str) -> PerClient:
        """The table of a layer and data set, made when it is first asked for."""
        return self.tables.setdefault((layer, data), PerClient())

    def settings(self) -> dict[str, Any]:
        """Of this measure."""
        return {}

    def outcomes(self) -> Iterator[Outcome]:
        """One line for each table."""
        for (layer, data), table in self.tables.items():
            yield Outcome("both", layer, data, table.result(), self.settings())
