"""Who follows a run: progress bars, loggers, live pages, early stopping, your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedloom.core.tree import State
from fedloom.record import RoundRecord, Summary
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths


class RunView(Protocol):
    """A run as its watchers see it. Everything in it is for reading."""

    @property
    def experiment(self) -> Experiment: ...

    @property
    def done(self) -> int:
        """How many of the experiment's plans are done."""

    @property
    def records(self) -> Sequence[RoundRecord]:
        """Of the plans that are done."""

    @property
    def server(self) -> State:
        """The server's state, as it is now."""

    @property
    def clients(self) -> Mapping[int, State]:
        """What every client keeps, or a receipt for it where that stays elsewhere."""

    @property
    def folder(self) -> RunPaths | None:
        """The run's folder, if it has one."""


@dataclass(frozen=True)
class Stop:
    """A watcher's answer that ends the training.

    With `finish` what comes after the last round (special rounds, final adaptation) still happens,
    as after an early stop; without, the run ends at once, as when it is pruned. Where a last round
    measures what this one did not (a round that `eval_every` leaves out, newcomers), one more round
    is the last.
    """

    reason: str
    finish: bool = True


class Watcher:
    """Override what you want to hear of.

    >>> class Patience(Watcher):
    ...     '''Stop when the training loss has not fallen for three rounds.'''
    ...
    ...     def step(self, run: RunView, record: RoundRecord) -> Stop | None:
    ...         losses = [r.loss for r in run.records if r.loss is not None]
    ...         if len(losses) > 3 and min(losses[-3:]) >= min(losses[:-3]):
    ...             return Stop("the loss did not fall for three rounds")
    ...         return None
    """

    def begun(self, run: RunView) -> None:
        """The run starts, or goes on where it had stopped."""

    def step(self, run: RunView, record: RoundRecord) -> Stop | None:
        """A step ended; `record` is its line in the journal. Answer `Stop` to end the training."""

    def ended(self, run: RunView, summary: Summary) -> None:
        """The run ended well."""

    def stopped(self, run: RunView) -> None:
        """The run ended otherwise: by Ctrl-C or an error."""
