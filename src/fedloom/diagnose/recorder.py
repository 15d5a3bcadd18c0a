"""Diagnostics while a run goes on, and the file they are kept in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedloom.core.stopwatch import timed
from fedloom.data import FederatedData
from fedloom.diagnose.finding import NAMES, chosen
from fedloom.diagnose.measures import Options
from fedloom.diagnose.samples import ROWS, Samples
from fedloom.diagnose.snapshots import CLIENTS, Snapshots
from fedloom.diagnose.study import Progress, study
from fedloom.errors import BadInput
from fedloom.files import write_atomic
from fedloom.record import Finding, RoundRecord
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import line_of, read_records
from fedloom.runs.watcher import RunView, Watcher


class Recorder(Watcher):
    """Measures a run every `diagnose_every` rounds and at the end; changes nothing of it.

    What it measures of a round depends on the run's states alone, so a run that goes on after a
    stop takes up lines of the rounds it kept and writes those after them again.
    """

    def __init__(self, experiment: Experiment) -> None:
        if not isinstance(experiment.data, FederatedData):
            raise BadInput("the clients' data is at their sites; leave out diagnose")
        self.findings: list[Finding] = []
        self._names = chosen(experiment.config.diagnose)
        self._samples = Samples(experiment.data, experiment.program.clients)

    def begun(self, run: RunView) -> None:
        rounds = [record.round for record in run.records if record.kind == "train"]
        last = max(rounds, default=0)
        if run.folder is not None:
            path = run.folder.diagnostics
            self.findings = [f for f in read_records(path, Finding) if f.round <= last]
            write_atomic(path, b"".join(map(line_of, self.findings)))
        if run.records:
            self.step(run, run.records[-1])

    def step(self, run: RunView, record: RoundRecord) -> None:
        known = {(f.round, f.name) for f in self.findings}
        missing = [n for n in self._names if (record.round, n) not in known]
        config = run.experiment.config
        due = record.round % config.diagnose_every == 0 or record.round == config.rounds
        if record.kind != "train" or not due or not missing:
            return
        with timed("evaluation"):
            snapshots = Snapshots(
                run.experiment, run.server, run.clients, run.done, samples=self._samples
            )
            new = study(snapshots, missing)
        self.findings += new
        if run.folder is not None:
            append_all(run.folder.diagnostics, new)


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
    replaced = {(f.round, f.name) for f in findings}
    kept = [f for f in read_records(path, Finding) if (f.round, f.name) not in replaced]
    every = sorted([*kept, *findings], key=lambda f: (f.round, _place(f.name)))
    write_atomic(path, b"".join(map(line_of, every)))


def append_all(path: Path, findings: Iterable[Finding]) -> None:
    """All lines of a round at once: Ctrl-C leaves all of them or none."""
    with open(path, "ab") as file:
        file.write(b"".join(map(line_of, findings)))
        file.flush()
        os.fsync(file.fileno())


def _place(name: str) -> int:
    return NAMES.index(name) if name in NAMES else len(NAMES)
