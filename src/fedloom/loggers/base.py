"""What every logger writes, and when; a subclass says with which tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from fedloom.errors import BadInput
from fedloom.methods import describe
from fedloom.record import RoundRecord, Summary, dump
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import Journal, read_records
from fedloom.runs.watcher import RunView, Watcher

Plain = dict[str, Any]
"""Values by name, in JSON's types."""


@dataclass(frozen=True)
class Mark:
    """A line of `logged.jsonl`: how far a log has come."""

    log: str | None = None
    """What the tool finds its log by; the first line."""
    step: int | None = None
    """A step that was logged."""
    summary: bool = False
    """The summary was logged."""


class Logger(Watcher, ABC):
    """A watcher that writes a run into a folder, by default one of its own in the run's folder.

    A resumed run goes on with its log: what is missing is taken from the run's journal, and what
    is there, because the process was killed after its last checkpoint, is not written again.
    A step is readable a second later.
    """

    name: ClassVar[str]
    """Of the tool, of the extra that installs it, and of the folder."""
    appends: ClassVar[bool] = True
    """Whether an earlier log can be gone on with; otherwise it is written anew."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._given = None if folder is None else Path(folder)
        self._marks: Journal | None = None
        self._next = self._round = 0
        self._has_summary = False

    def begun(self, run: RunView) -> None:
        """Begin a log, or go on with the one of a run that is resumed."""
        self.close()  # of a run before this one that failed
        folder = self._folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal.open(folder / "logged.jsonl")
        marks = read_records(journal.path, Mark) if run.done else []
        log = marks[0].log if marks else None
        anew = log is None or not self.appends
        if anew:
            journal.truncate(0)
            marks = []
        self._next = max((mark.step + 1 for mark in marks if mark.step is not None), default=0)
        self._has_summary = any(mark.summary for mark in marks)
        self._round = 0
        log = self._open(folder, describe(run.experiment.program.method), log)
        self._marks = journal  # from here on there is something to close
        if anew:
            self._write_config(run.experiment.config.model_dump(mode="json"))
            journal.append(Mark(log=log))
        for record in run.records:
            self.step(run, record)

    def step(self, run: RunView, record: RoundRecord) -> None:
        """Write a round, unless the log has it."""
        self._round = record.round
        if record.step < self._next:
            return
        assert self._marks is not None
        self._write(numbers(record), record.step)
        self._marks.append(Mark(step=record.step))
        self._next = record.step + 1

    def ended(self, run: RunView, summary: Summary) -> None:
        """Write the summary, unless the log has it, and close."""
        assert self._marks is not None
        if not self._has_summary:
            self._write_summary(summary_values(summary))
            self._marks.append(Mark(summary=True))
        self._end(well=True)

    def stopped(self, run: RunView) -> None:
        """Close the log of a run that did not end well."""
        self.close()

    def close(self) -> None:
        """Let go of a run that did not end well; otherwise nothing is left to do."""
        if self._marks is not None:
            self._end(well=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, well: bool) -> None:
        assert self._marks is not None
        self._marks.close()
        self._marks = None
        self._close(well)

    def _folder(self, run: RunView) -> Path:
        if self._given is not None:
            return self._given
        if run.experiment.config.out is None:
            raise BadInput(
                f"a run in memory has no folder for its {self.name} log; give the run `out`, or"
                " the logger a folder"
            )
        return RunPaths(run.experiment.config.out).log(self.name)

    @abstractmethod
    def _open(self, folder: Path, title: str, log: str | None) -> str:
        """Begin a log (None) or go on with that one; returns what to find it by."""

    @abstractmethod
    def _write_config(self, config: Plain) -> None:
        """Every key of the configuration."""

    @abstractmethod
    def _write(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of a step, over `_round`."""

    @abstractmethod
    def _write_summary(self, summary: Plain) -> None:
        """The summary, flat."""

    @abstractmethod
    def _close(self, well: bool) -> None:
        """Let go of files and processes."""


def numbers(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round by name; special rounds and the adaptation have names of their own.

    >>> step = RoundRecord(9, 9, "adapt", "model", (), None, 0, 8, 0.5, {}, ())
    >>> list(numbers(step))
    ['adapt/bytes_up', 'adapt/bytes_down', 'adapt/seconds', 'adapt/absent']
    """
    kind = record.kind
    prefix = {"train": "", "special": f"special/{record.owner}/"}.get(kind, f"{kind}/")
    loss = {} if record.loss is None else {f"{prefix}loss": record.loss}
    values = {
        **loss,
        f"{prefix}bytes_up": float(record.bytes_up),
        f"{prefix}bytes_down": float(record.bytes_down),
        f"{prefix}seconds": record.seconds,
        f"{prefix}absent": float(len(record.absent)),
    }
    for score in record.scores:
        for metric in score.metrics:
            for name, value in asdict(score.spread(metric)).items():
                values[f"{score.at.path}/{metric}/{name}"] = value
    return values


def summary_values(summary: Summary) -> Plain:
    """A summary on one level, without the values of single clients."""
    short = {summary.metric: summary.value, "worst_decile": summary.worst_decile}
    values = flat(dump(summary))
    return short | {key: value for key, value in values.items() if not isinstance(value, list)}


def flat(nested: Mapping[str, Any], prefix: str = "") -> Plain:
    """One level, with the names of all levels.

    >>> flat({"rounds": 2, "activities": {"main": {"data": 0.5}}})
    {'rounds': 2, 'activities/main/data': 0.5}
    """
    level: Plain = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            level |= flat(value, f"{prefix}{key}/")
        else:
            level[prefix + key] = value
    return level
