"""What a diagnostic is: what it measures, what its results hold, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedloom.diagnose.measure import Measure, Options
from fedloom.diagnose.rows import Row
from fedloom.diagnose.snapshots import Snapshots
from fedloom.drawing.figures import Drawings
from fedloom.drawing.html import Html
from fedloom.record import Finding, When, load

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading(Generic[Result]):
    """A finding with its result in the diagnostic's own type."""

    round: int
    snapshot: When
    layer: str | None
    data: str
    settings: Mapping[str, Any]
    result: Result


@dataclass(frozen=True)
class Diagnostic(Generic[Result]):
    """Everything about one diagnostic. Its file in `fedloom.diagnose.diagnostics` ends with it."""

    name: str
    """In commands, configurations and files."""
    title: str
    """For readers."""
    order: int
    """Its place among the others, in files, in the table and on the page."""
    measure: Callable[[Snapshots, Options], Measure[Result]]
    result: type[Result]
    """A frozen dataclass, kept as JSON in `Finding.result`."""
    rows: Callable[[Reading[Result]], list[Row]]
    """Its rows in the terminal."""
    chart: Callable[[str, list[Reading[Result]], Drawings], Html]
    """Its part of the report, from one reading or more of a run; the text is the element's id."""

    def read(self, finding: Finding) -> Reading[Result]:
        """A finding of this diagnostic that was not skipped."""
        where = f"the result of {self.name} in round {finding.round} of diagnostics.jsonl"
        return Reading(
            round=finding.round,
            snapshot=finding.snapshot,
            layer=finding.layer,
            data=finding.data,
            settings=finding.settings,
            result=load(self.result, finding.result, where),
        )
