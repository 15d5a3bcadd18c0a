"""A progress bar for one run, or for many, one after another or side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedloom.core.metrics import metric, words
from fedloom.record import Headline, RoundRecord, Summary
from fedloom.runs.watcher import RunView, Watcher


class Bar:
    """A bar with the time left, on standard error; it does nothing where it is not `shown`."""

    def __init__(self, console: Console, runs: int = 1, shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not shown,
        )
        self.lock = threading.Lock()
        self.over = 0
        """Runs that are over, those of earlier commands too."""
        self._running: dict[TaskID, float] = {}
        """Line of a run -> what is done of it, from 0 to 1."""
        self._all: TaskID | None = None
        if runs > 1:
            self._all = self._progress.add_task("all runs", total=float(runs), status="")

    def __enter__(self) -> Self:
        return self  # the first run that begins starts it: an error before shows no bar

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def watcher(self, label: str, over: int = 0) -> BarWatcher:
        """Watches one run on this bar, `over` runs being over."""
        self.over = over
        self._show_all()
        return BarWatcher(self.line(label))

    def line(self, label: str) -> Line:
        """For a run that somebody else watches."""
        return Line(self, label)

    def begin(self, label: str, done: int, steps: int) -> TaskID:
        """A line for a run."""
        self._progress.start()
        return self._progress.add_task(label, total=steps, completed=done, status="")

    def advance(self, line: TaskID, done: int, steps: int, headline: Headline | None) -> None:
        """A run has come so far."""
        self._progress.update(line, completed=done)
        if headline is not None:
            shown = metric(headline.metric).shown(headline.value, 1)
            self._progress.update(line, status=f"{words(headline.metric)} {shown}")
        self._running[line] = done / steps
        self._show_all()

    def end(self, line: TaskID | None) -> None:
        """A run is over, or was before it had a line; a single run's line stays to be read."""
        self.over += 1
        if line is not None:
            self._running.pop(line)
            if self._all is not None:
                self._progress.remove_task(line)
        self._show_all()

    def _show_all(self) -> None:
        if self._all is not None:
            self._progress.update(self._all, completed=self.over + sum(self._running.values()))


class Line:
    """One run's line on a bar, from its first step on. Threads may share it."""

    def __init__(self, bar: Bar, label: str) -> None:
        self._bar, self._label = bar, label
        self._at: TaskID | None = None
        self._ended = False

    def reached(self, done: int, steps: int, headline: Headline | None = None) -> None:
        """The run has done so many of its steps; of one that is over, news that come late."""
        with self._bar.lock:
            if self._ended:
                return
            if self._at is None:
                self._at = self._bar.begin(self._label, done, steps)
            self._bar.advance(self._at, done, steps, headline)

    def over(self) -> None:
        """The run is over."""
        with self._bar.lock:
            self._ended = True
            self._bar.end(self._at)


class BarWatcher(Watcher):
    """Shows the run it watches."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def begun(self, run: RunView) -> None:
        self._line.reached(run.done, len(run.experiment.plans))

    def step(self, run: RunView, record: RoundRecord) -> None:
        self._line.reached(run.done, len(run.experiment.plans), record.headline)

    def ended(self, run: RunView, summary: Summary) -> None:
        self._line.over()


@contextmanager
def python_bar(wanted: bool | None, runs: int = 1) -> Iterator[Bar]:
    """For calls from Python. None: it is shown in a terminal or a notebook, and not where the
    output goes to a file."""
    console = Console(stderr=True)
    if wanted is None:
        wanted = console.is_terminal or console.is_jupyter
    with Bar(console, runs, wanted) as bar:
        yield bar
