"""A progress bar for one run, or for many one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from fedloom.record import RoundRecord, Summary
from fedloom.runs.watcher import RunView, Watcher


class Bar:
    """A bar with the time left, on standard error, for one run or for many one after another."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._all: TaskID | None = None
        if runs > 1:
            self._all = self._progress.add_task("all runs", total=float(runs), status="")

    def __enter__(self) -> Self:
        return self  # the first run that begins starts it: an error before shows no bar

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def watcher(self, label: str, done: int = 0) -> BarWatcher:
        """Watches one run on this bar, `done` runs being over."""
        if self._all is not None:
            self._progress.update(self._all, completed=done)
        return BarWatcher(self._progress, label, self._all)


class BarWatcher(Watcher):
    """One run's line on a bar."""

    def __init__(self, progress: Progress, label: str, whole: TaskID | None) -> None:
        self._progress, self._label, self._whole = progress, label, whole
        self._line: TaskID | None = None
        self._share = 0.0

    def begun(self, run: RunView) -> None:
        self._progress.start()
        total = len(run.experiment.plans)
        self._share = 1 / total
        self._line = self._progress.add_task(
            self._label, total=total, completed=run.done, status=""
        )
        if self._whole is not None:
            self._progress.advance(self._whole, run.done * self._share)

    def step(self, run: RunView, record: RoundRecord) -> None:
        assert self._line is not None
        self._progress.advance(self._line)
        if record.headline is not None:
            shown = metric(record.headline.metric).shown(record.headline.value, 1)
            status = f"{words(record.headline.metric)} {shown}"
            self._progress.update(self._line, status=status)
        if self._whole is not None:
            self._progress.advance(self._whole, self._share)

    def ended(self, run: RunView, summary: Summary) -> None:
        if self._line is not None and self._whole is not None:
            self._progress.remove_task(self._line)
            # Shares of a run do not add up to exactly one.
            self._progress.update(self._whole, completed=round(self._completed(self._whole)))

    def _completed(self, line: TaskID) -> float:
        return next(t.completed for t in self._progress.tasks if t.id == line)


@contextmanager
def python_bar(
    wanted: bool | None, runs: int = 1
) -> Iterator[Callable[[str, int], Sequence[Watcher]]]:
    """For calls from Python: a function from a run's label and the runs before it to its watchers.

    None: a bar in a terminal or a notebook, and none where the output goes to a file.
    """
    console = Console(stderr=True)
    if wanted is None:
        wanted = console.is_terminal or console.is_jupyter
    if not wanted:
        yield lambda label, over: ()
        return
    with Bar(console, runs) as bar:
        yield lambda label, over: [bar.watcher(label, over)]
