"""Diagnostics while a run goes on, and the file they are kept in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.core.tree import State
from fedloom.data import FederatedData
from fedloom.diagnose.finding import NAMES, Finding, chosen
from fedloom.diagnose.measures import Options
from fedloom.diagnose.samples import ROWS, Samples
from fedloom.diagnose.snapshots import CLIENTS, Snapshots
from fedloom.diagnose.study import Progress, study
from fedloom.errors import BadInput
from fedloom.files import jsonable, write_atomic
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import Journal

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment

Line = dict[str, Any]


class Recorder:
    """Measures an experiment every `diagnose_every` rounds and at the end; changes nothing of it.

    What it measures of a round depends on the run's states alone, so a run that goes on after a
    stop takes up lines of the rounds it kept and writes those after them again.
    """

    def __init__(self, experiment: Experiment, path: Path | None) -> None:
        if not isinstance(experiment.data, FederatedData):
            raise BadInput("the clients' data is at their sites; leave out diagnose")
        config = experiment.config
        self.experiment, self.path = experiment, path
        self.lines: list[Line] = []
        self._names = chosen(config.diagnose)
        self._samples = Samples(experiment.data, experiment.program.clients)

    def start(self, done: int) -> None:
        """Drop the lines of rounds after so many plans."""
        rounds = [plan.t for plan in self.experiment.plans[:done] if plan.kind == "train"]
        last = max(rounds, default=0)
        self.lines = [line for line in read_lines(self.path) if line["round"] <= last]
        if self.path is not None:
            _write(self.path, self.lines)

    def record(self, done: int, server: State, clients: Mapping[int, State]) -> None:
        """The lines of the round that was done last, if it is due and has none."""
        plan = self.experiment.plans[done - 1]
        missing = [n for n in self._names if (plan.t, n) not in _heads(self.lines)]
        if plan.kind != "train" or not self._due(plan.t) or not missing:
            return
        snapshots = Snapshots(self.experiment, server, clients, done, samples=self._samples)
        new = _lines(study(snapshots, missing))
        self.lines += new
        if self.path is not None:
            _append(self.path, new)

    def _due(self, t: int) -> bool:
        config = self.experiment.config
        return t % config.diagnose_every == 0 or t == config.rounds


def diagnose(
    run: str | Path,
    only: str | Iterable[str] | None = None,
    *,
    rows: int = ROWS,
    clients: int = CLIENTS,
    options: Options | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Finding], tuple[str, ...]]:
    """Study a run folder's newest checkpoint and keep what was found there; with a sentence for
    every damaged checkpoint that was passed over."""
    with RunFolder.open(run) as folder:
        snapshots = Snapshots.of(run, rows=rows, clients=clients)
        findings = study(snapshots, only, options=options, progress=progress)
        save(folder.diagnostics, findings)
    return findings, snapshots.warnings


def save(path: Path, findings: Sequence[Finding]) -> None:
    """Put findings in a run's file, in place of those of the same round and name."""
    new = _lines(findings)
    replaced = _heads(new)
    kept = [line for line in read_lines(path) if (line["round"], line["name"]) not in replaced]
    _write(path, sorted([*kept, *new], key=lambda line: (line["round"], _place(line["name"]))))


def read_lines(path: Path | None) -> list[Line]:
    """All complete lines, none where there is no file."""
    return [] if path is None or not path.exists() else Journal.read(path)


def _write(path: Path, lines: Iterable[Line]) -> None:
    write_atomic(path, _text(lines))


def _append(path: Path, lines: Iterable[Line]) -> None:
    """All lines of a round at once: Ctrl-C leaves all of them or none."""
    with open(path, "ab") as file:
        file.write(_text(lines).encode())
        file.flush()
        os.fsync(file.fileno())


def _text(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(x, allow_nan=False, ensure_ascii=False) + "\n" for x in lines)


def _lines(findings: Sequence[Finding]) -> list[Line]:
    return [jsonable(finding.as_record()) for finding in findings]


def _heads(lines: Iterable[Line]) -> set[tuple[int, str]]:
    return {(line["round"], line["name"]) for line in lines}


def _place(name: str) -> int:
    return NAMES.index(name) if name in NAMES else len(NAMES)
