"""What every logger writes, and when; a subclass says with which tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from fedloom.errors import BadInput
from fedloom.methods import describe
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import Journal
from fedloom.runs.scores import Record
from fedloom.runs.watcher import Watcher

STATISTICS = ("mean", "weighted", "worst_decile", "std")
"""What is logged of every scored "moment/split"."""


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

    def begun(self, experiment: Experiment, done: int) -> None:
        """Begin a log, or go on with the one of a run that is resumed."""
        self.close()  # of a run before this one that failed
        folder = self._folder(experiment)
        folder.mkdir(parents=True, exist_ok=True)
        marks = Journal.open(folder / "logged.jsonl")
        there = Journal.read(marks.path) if done else []
        log = there[0]["log"] if there else None
        anew = log is None or not self.appends
        if anew:
            marks.truncate(0)
            there = []
        self._next = max((mark["step"] + 1 for mark in there if "step" in mark), default=0)
        self._has_summary = any("summary" in mark for mark in there)
        self._round = 0
        opened = self._open(folder, describe(experiment.program.method), log)
        self._marks = marks  # from here on there is something to close
        if anew:
            self._write_config(experiment.config.model_dump())
            marks.append({"log": opened})
        if done:
            for record in Journal.read(RunPaths(str(experiment.config.out)).metrics):
                self.step(record)

    def step(self, record: Record) -> None:
        """Write a round, unless it is there."""
        self._round = record["round"]
        if record["step"] < self._next:
            return
        assert self._marks is not None
        self._write(numbers(record), record)
        self._marks.append({"step": record["step"]})
        self._next = record["step"] + 1

    def ended(self, summary: Record) -> None:
        """Write the summary, unless it is there, and close."""
        assert self._marks is not None
        if not self._has_summary:
            self._write_summary(flat(summary))
            self._marks.append({"summary": summary["accuracy"]})
        self._end(well=True)

    def stopped(self) -> None:
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

    def _folder(self, experiment: Experiment) -> Path:
        if self._given is not None:
            return self._given
        if experiment.config.out is None:
            raise BadInput(
                f"a run in memory has no folder for its {self.name} log; give the run `out`, or"
                " the logger a folder"
            )
        return RunPaths(experiment.config.out).log(self.name)

    @abstractmethod
    def _open(self, folder: Path, title: str, log: str | None) -> str:
        """Begin a log (None) or go on with that one; returns what to find it by."""

    @abstractmethod
    def _write_config(self, config: Record) -> None:
        """Every key of the configuration."""

    @abstractmethod
    def _write(self, values: Mapping[str, float], record: Record) -> None:
        """The numbers of a round, over `_round`."""

    @abstractmethod
    def _write_summary(self, summary: Record) -> None:
        """The summary, flat."""

    @abstractmethod
    def _close(self, well: bool) -> None:
        """Let go of files and processes."""


def numbers(record: Record) -> dict[str, float]:
    """The numbers of a round by name; special rounds and the adaptation have names of their own.

    >>> scores = {"final/test": {"mean": 1.0, "weighted": 1.0, "worst_decile": 1.0, "std": 0.0}}
    >>> cost = {"loss": None, "bytes_up": 0, "bytes_down": 8, "seconds": 0.5}
    >>> list(numbers({"kind": "adapt", "owner": "model", **cost, "scores": scores}))[:4]
    ['adapt/bytes_up', 'adapt/bytes_down', 'adapt/seconds', 'adapt/absent']
    """
    kind = record["kind"]
    prefix = {"train": "", "special": f"special/{record['owner']}/"}.get(kind, f"{kind}/")
    cost = {key: record[key] for key in ("loss", "bytes_up", "bytes_down", "seconds")}
    cost["absent"] = len(record.get("absent", ()))
    found = {prefix + key: float(value) for key, value in cost.items() if value is not None}
    for at, stats in record["scores"].items():
        found |= {f"{at}/{key}": float(stats[key]) for key in STATISTICS}
    return found


def flat(nested: Mapping[str, Any], prefix: str = "") -> Record:
    """One level, with the names of all levels.

    >>> flat({"rounds": 2, "activities": {"main": {"data": 0.5}}})
    {'rounds': 2, 'activities/main/data': 0.5}
    """
    found: Record = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}/")
        else:
            found[prefix + key] = value
    return found
