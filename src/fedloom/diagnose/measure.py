"""What a measure is: it sees one client after another, then says what they come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.record import When

Result = TypeVar("Result")
ClientRow = TypeVar("ClientRow")


@dataclass(frozen=True)
class Options:
    """What a user may choose about single measures."""

    estimator: str = "online"
    """Code of the MDL: online or reprieve."""
    probe: str = "ridge"
    """Classifier of the MDL: ridge or mlp."""


@dataclass(frozen=True)
class Skipped:
    """Stands for a result that cannot be measured."""

    reason: str


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """One result of a measure: of which model, layer and rows, and with which settings."""

    snapshot: When
    layer: str | None
    data: str
    result: Result | Skipped
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Only those of this measure; a study adds what is the same for all."""


class Measure(ABC, Generic[Result]):
    """One diagnostic under way. It does not keep clients' views, so that memory does not grow with
    the number of clients."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        self.snapshots, self.options = snapshots, options

    @abstractmethod
    def see(self, client: ClientView) -> None:
        """Take from one client what the results need."""

    @abstractmethod
    def outcomes(self) -> Iterator[Outcome[Result]]:
        """The results over all clients that were seen."""


class LayerMeasure(Measure[Result], Generic[Result, ClientRow]):
    """A measure inside each client, layer by layer: `see` adds a row to the layer's table."""

    data: ClassVar[str]
    """The rows it looks at."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self.tables: dict[str, list[ClientRow]] = defaultdict(list)

    @abstractmethod
    def result(self, rows: list[ClientRow]) -> Result:
        """The result of one layer from the rows of its clients."""

    def settings(self) -> dict[str, Any]:
        """Of this measure."""
        return {}

    def outcomes(self) -> Iterator[Outcome[Result]]:
        """One for each layer."""
        for layer, rows in self.tables.items():
            yield Outcome("both", layer, self.data, self.result(rows), self.settings())
