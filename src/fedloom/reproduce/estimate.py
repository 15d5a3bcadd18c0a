"""How long the runs that are left of a table will take on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from fedloom.durations import duration
from fedloom.record import RoundRecord, Summary
from fedloom.reproduce.format import Cell
from fedloom.runs.watcher import RunView, Watcher

AGAIN = 600.0
"""Seconds after which a run that goes on is estimated anew."""
_Place = tuple[str, str]
"""Column and row."""


@dataclass
class Estimate:
    """Rounds that are left, and what a round takes, as far as one was timed."""

    left: dict[tuple[_Place, int], int] = field(default_factory=dict)
    """Cell and seed -> rounds that are still to be run."""
    seconds: dict[_Place, float] = field(default_factory=dict)
    """Cell -> seconds of a round."""
    may_end_early: bool = False

    def add(self, cell: Cell, seed: int, rounds: int) -> None:
        """A run that is to be run."""
        self.left[_place(cell), seed] = rounds
        self.may_end_early = self.may_end_early or cell.config.early_stop is not None

    def drop(self, cell: Cell, seed: int) -> None:
        """A run that has ended, or broken down."""
        self.left.pop((_place(cell), seed), None)

    def timed_round(self, cell: Cell, seconds: float) -> None:
        """What a round of a cell takes."""
        self.seconds[_place(cell)] = seconds

    @property
    def remaining(self) -> float:
        """Seconds. A cell that was not timed counts like the mean of those of its column that
        were, or else of all that were."""
        return sum(rounds * self._of_round(place) for (place, _), rounds in self.left.items())

    def _of_round(self, place: _Place) -> float:
        if place in self.seconds:
            return self.seconds[place]
        of_column = [s for (column, _), s in self.seconds.items() if column == place[0]]
        return fmean(of_column or self.seconds.values())

    def sentence(self) -> str:
        """What is left, in words."""
        runs, places = len(self.left), {place for place, _ in self.left}
        unknown = sum(place not in self.seconds for place in places)
        most = "at most " if self.may_end_early else ""
        text = f"{runs} run{'' if runs == 1 else 's'} left, {most}about {duration(self.remaining)}"
        if not unknown:
            return text
        untimed = f"{unknown} of {len(places)} rows are not timed yet"
        return f"{text} ({untimed} and counted like the others)"


class Clock(Watcher):
    """Times the rounds of a run for an estimate, and says how long the rest takes."""

    def __init__(
        self, estimate: Estimate, cell: Cell, seed: int, note: Callable[[str], None]
    ) -> None:
        self._estimate, self._cell, self._seed, self._note = estimate, cell, seed, note
        self._noted = time.monotonic()

    def begun(self, run: RunView) -> None:
        self._count(run)
        if run.done:
            self._note(f"{self._name}: goes on after {run.done} of {self._plans(run)} rounds")
            self._say(run)

    def step(self, run: RunView, record: RoundRecord) -> None:
        first = _place(self._cell) not in self._estimate.seconds
        self._count(run)
        if first or time.monotonic() - self._noted > AGAIN:
            self._say(run)

    def ended(self, run: RunView, summary: Summary) -> None:
        self._estimate.drop(self._cell, self._seed)

    def _count(self, run: RunView) -> None:
        self._estimate.add(self._cell, self._seed, self._plans(run) - run.done)
        if run.records:
            self._estimate.timed_round(self._cell, round_seconds(run.records))

    def _say(self, run: RunView) -> None:
        self._noted = time.monotonic()
        seconds = self._estimate.seconds[_place(self._cell)]
        most = "at most " if self._cell.config.early_stop is not None else ""
        whole = f"about {duration(seconds * self._plans(run))}"
        self._note(
            f"{self._name}: {seconds:.2g} s a round, {most}{whole} for {self._plans(run)};"
            f" {self._estimate.sentence()}"
        )

    @property
    def _name(self) -> str:
        return f"{self._cell.row} in {self._cell.column}, seed {self._seed}"

    @staticmethod
    def _plans(run: RunView) -> int:
        return len(run.experiment.plans)


def round_seconds(records: Sequence[RoundRecord]) -> float:
    """What a round takes, over rounds of which there is at least one.

    Medians: while a process is stopped or its machine sleeps, a round may take hours. Rounds that
    are scored, and special ones, take their own time, so they are counted on their own. The first
    round also warms up, and counts only where it is alone.
    """
    alike: dict[tuple[str, bool], list[float]] = {}
    for record in records[1:] or records:
        alike.setdefault((record.kind, bool(record.scores)), []).append(record.seconds)
    return fmean(median(times) for times in alike.values() for _ in times)


def _place(cell: Cell) -> _Place:
    return cell.column, cell.row
