"""Diagnostics while a run goes on, or of its newest checkpoint, and the file they are kept in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedloom.core.stopwatch import timed
from fedloom.data import FederatedData
from fedloom.diagnose.measure import Options
from fedloom.diagnose.registry import chosen, diagnostics
from fedloom.diagnose.samples import ROWS, Samples
from fedloom.diagnose.snapshots import CLIENTS, Snapshots
from fedloom.diagnose.study import Progress, study
from fedloom.errors import BadInput
from fedloom.files import open_to_append, write_atomic
from fedloom.record import Finding, RoundRecord, Summary
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import line_of, read_records
from fedloom.runs.watcher import RunView, Watcher


class Recorder(Watcher):
    """Measures a run every `diagnose_every` rounds and after the last; changes nothing of it.

    What it finds in a round depends on the run's states alone. So a run that is resumed keeps the
    findings of the rounds it does not repeat.
    """

    def __init__(self, experiment: Experiment) -> None:
        if not isinstance(experiment.data, FederatedData):
            raise BadInput("the clients' data is at their sites; leave out diagnose")
        self.findings: list[Finding] = []
        self._names = chosen(experiment.config.diagnose)
        self._every, self._rounds = experiment.config.diagnose_every, experiment.config.rounds
        self._samples = Samples(experiment.data, experiment.program.clients)

    def begun(self, run: RunView) -> None:
        """Drop findings of rounds that are to be done again. The run may have been interrupted
        while its last round was measured: make up for what is missing of it."""
        if run.folder is not None:
            last = max((r.round for r in run.records if r.kind == "train"), default=0)
            stored = read_records(run.folder.diagnostics, Finding)
            self.findings = [finding for finding in stored if finding.round <= last]
            _write(run.folder.diagnostics, self.findings)
        if run.records:
            self.step(run, run.records[-1])

    def step(self, run: RunView, record: RoundRecord) -> None:
        """Measure a training round that is due."""
        t = record.round
        if record.kind == "train" and (t % self._every == 0 or t == self._rounds):
            self._measure(run, t)

    def ended(self, run: RunView, summary: Summary) -> None:
        """Measure the last round of a run that was stopped before the round it was meant for."""
        if summary.stopped is not None:
            self._measure(run, max(r.round for r in run.records if r.kind == "train"))

    def _measure(self, run: RunView, t: int) -> None:
        """What is missing of the round that was trained last."""
        measured = {finding.name for finding in self.findings if finding.round == t}
        missing = [name for name in self._names if name not in measured]
        if not missing:
            return
        with timed("evaluation"):
            snapshots = Snapshots(
                run.experiment, run.server, run.clients, run.records, samples=self._samples
            )
            new = study(snapshots, missing)
        self.findings += new
        if run.folder is not None:
            _append(run.folder.diagnostics, new)


def diagnose(
    run: str | Path,
    only: str | Iterable[str] | None = None,
    *,
    rows: int = ROWS,
    clients: int = CLIENTS,
    imports: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Finding], tuple[str, ...]]:
    """Study a run folder's newest checkpoint and keep the findings there; with a sentence for
    every damaged checkpoint that was passed over."""
    with RunFolder.open(run) as folder:
        snapshots = Snapshots.of(run, rows=rows, clients=clients, imports=imports)
        findings = study(snapshots, only, options=options, progress=progress)
        save(folder.diagnostics, findings)
    return findings, snapshots.warnings


def save(path: Path, findings: Sequence[Finding]) -> None:
    """Put findings in a run's file, in place of those of the same round and name."""
    replaced = {(finding.round, finding.name) for finding in findings}
    stored = read_records(path, Finding)
    others = [finding for finding in stored if (finding.round, finding.name) not in replaced]
    places = {name: place for place, name in enumerate(diagnostics())}

    def order(finding: Finding) -> tuple[int, int]:
        return finding.round, places.get(finding.name, len(places))

    _write(path, sorted([*others, *findings], key=order))


def _write(path: Path, findings: Iterable[Finding]) -> None:
    write_atomic(path, b"".join(map(line_of, findings)))


def _append(path: Path, findings: Iterable[Finding]) -> None:
    """All lines of a round at once, so that Ctrl-C leaves all of them or none."""
    with open_to_append(path) as file:
        file.write(b"".join(map(line_of, findings)))
        file.flush()
        os.fsync(file.fileno())
