"""Who is told how a run goes: progress bars, loggers, live pages, your own."""

from __future__ import annotations

from fedloom.runs.experiment import Experiment
from fedloom.runs.scores import Record


class Watcher:
    """Override what you want to hear of.

    >>> class Losses(Watcher):
    ...     def __init__(self) -> None:
    ...         self.seen: list[float] = []
    ...
    ...     def step(self, record: Record) -> None:
    ...         self.seen.append(record["loss"])
    """

    def begun(self, experiment: Experiment, done: int) -> None:
        """The run starts, with so many plans done before."""

    def step(self, record: Record) -> None:
        """A round ended; `record` is its line in the journal."""

    def ended(self, summary: Record) -> None:
        """The run ended well."""

    def stopped(self) -> None:
        """The run ended otherwise: by Ctrl-C or an error."""
