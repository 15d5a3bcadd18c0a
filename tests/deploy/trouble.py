"""A federation of four hospitals on loopback whose processes can be got into trouble."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fedloom.runs.scores import Record
from sites import together, write_rows
from watching import with_environment

from fedloom.core.digest import digest
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.tree import State
from fedloom.deploy.federation import DeployedFederation, Run, is_connected
from fedloom.deploy.new_project import write_project
from fedloom.deploy.processes import Child, flower_environment, free_ports
from fedloom.deploy.project import Project
from fedloom.deploy.settings import Settings
from fedloom.engines import Absent, JobOf
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import Journal
from helpers import wait_until

A, B, C, D = NAMES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
KINDS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9, 0), (1, 4, 7))
MARK = "FEDLOOM_TRIAL"
"""Environment variable by which all processes of a trial are known."""
LIMIT = 600.0
"""Seconds within which anything waited for has to happen, on a busy machine."""
DEPLOY = "from fedloom.deploy.cli import deploy_app; deploy_app()"
"""`fedloom deploy`."""


def troubled_project(folder: Path) -> Project:
    """A project with TLS and keys whose client app is `misbehaving.py`."""
    link, *ports = free_ports(1 + len(NAMES))
    run = {"method": "fedper", "model": "mlp(hidden=[16])", "batch_size": 16, "min_clients": 2}
    classes = {"class_names": tuple("0123456789")}
    project = write_project(folder, NAMES, port=link, ports=ports, run={**run, **classes})
    app = Path(__file__).with_name("misbehaving.py")
    shutil.copy(app, project.root / "federation" / "client_app.py")
    for name, kinds in zip(NAMES, KINDS, strict=True):
        place = Place(project.site(name).parent)
        write_rows(place.folder / "data.npz", kinds)
        place.trouble({})
    return project


@dataclass(frozen=True)
class Place:
    """A site's folder."""

    folder: Path

    def trouble(self, planned: dict[str, str]) -> None:
        """What is to happen here, by "experiment round"; see `misbehaving.py`."""
        (self.folder / "trouble.json").write_text(json.dumps(planned))

    def held(self, moment: str) -> bool:
        """Is the site, or was it, in the midst of that round?"""
        return (self.folder / f"held {moment}").exists()

    def go(self, moment: str) -> None:
        """Let it go on."""
        (self.folder / f"go {moment}").touch()

    def orders(self, experiment: str) -> list[tuple[str, str | None]]:
        """Rounds in which it was to train, and the state that it was to go on from."""
        file = self.folder / "orders.jsonl"
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        found = ((*line["moment"].split(), line["own"]) for line in lines)
        return [(t, own) for name, t, own in found if name == experiment]

    def states(self, experiment: str) -> set[str]:
        """Digests of the states on its disk."""
        return SiteStore(self.folder / "state" / experiment / "states").names()


class Trial(DeployedFederation):
    """A federation of which every process, whoever started it, carries the trial's mark."""

    def __init__(self, project: Project, mark: str) -> None:
        super().__init__(project)
        self.mark = mark
        self.places = {name: Place(project.site(name).parent) for name in NAMES}
        self.nodes[C] = supervised(project, C, self.logs / f"{C}.log")

    def up(self, *names: str) -> None:
        """See that the link and these sites are there."""
        if not self.link.alive:
            self.start_link(LIMIT)
        for name in names:
            if not self.nodes[name].alive:
                self.nodes[name].start()
        for name in names:
            self.nodes[name].ready(partial(is_connected, self.nodes[name]), LIMIT)

    def wait_held(self, run: Run, name: str, moment: str) -> None:
        """Until a site is in the midst of that round of a run."""
        run.child.ready(partial(self.places[name].held, moment), LIMIT)

    def find(self, *words: str) -> list[int]:
        """Processes of the trial with all these words in their command."""
        return [pid for pid in sorted(with_environment(MARK, self.mark)) if _says(pid, words)]

    def kill(self, *words: str) -> None:
        """SIGKILL to the one process with these words in its command."""
        (pid,) = self.find(*words)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in self.find(*words), LIMIT)

    def records(self, run: Run) -> list[Record]:
        """The journal so far."""
        file = RunPaths(run.out / "run").metrics
        return Journal.read(file) if file.exists() else []

    def summary(self, run: Run) -> Record:
        """Of a run that ended."""
        found: Record = json.loads(RunPaths(run.out / "run").summary.read_text())
        return found

    def receipts(self, run: Run) -> dict[int, str]:
        """The state of every client that the server counts on."""
        newest = Checkpoints(RunPaths(run.out / "run").checkpoints).load_latest()[0]
        return {cid: digest(state) for cid, state in newest.clients.items()}


@contextmanager
def trial(folder: Path) -> Iterator[Trial]:
    """A trial that leaves no process behind; one that does has failed."""
    mark = uuid.uuid4().hex
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(MARK, mark)
            patch.setenv("FEDLOOM_CACHE", str(folder / "cache"))
            with Trial(troubled_project(folder / "project"), mark) as made:
                try:
                    yield made
                finally:
                    made.nodes[C].end(grace=60)  # which has to end a node of its own
    finally:
        left = {pid: _command(pid) for pid in with_environment(MARK, mark)}
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left


def supervised(project: Project, name: str, log: Path) -> Child:
    """A site's SuperNode under `fedloom deploy node`, which starts it again where it ends."""
    command = [sys.executable, "-c", DEPLOY, "node", project.site(name), "--pause", "2"]
    return Child(f"the supervisor of {name}", command, flower_environment(project.home), log)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def _says(pid: int, words: Sequence[str]) -> bool:
    command = _command(pid)
    return all(word in command for word in words)


# ------------------------------------------------------------------ the same in one process


@dataclass
class Replay(Inline):
    """The reference engine with the cohorts and absences of a journal."""

    records: list[Record]
    kept: list[dict[int, str]] = field(default_factory=list)
    """For each step, the digests of what clients kept."""

    def __post_init__(self) -> None:
        super().__init__()

    def present(self, clients: int) -> Sequence[int]:
        return list(self.records[len(self.kept)]["cohort"])

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        absent = self.records[len(self.kept)].get("absent", {})
        self.kept.append({})
        for cid, up, own in super().clients([i for i in ids if str(i) not in absent], job, ask):
            self.kept[-1][cid] = digest(own)
            yield cid, up, own
        for cid, why in absent.items():
            job(int(cid))  # it was sent
            yield int(cid), Absent(why), {}


@dataclass(frozen=True)
class Reference:
    """What a run has to come to."""

    sha256: str
    records: list[Record]
    kept: list[dict[int, str]]


def reference(project: Project, run: Run, records: list[Record]) -> Reference:
    """The run in this process, sites being absent where a journal says so."""
    settings: Settings = run.settings
    data = together([project.site(name) for name in settings.sites], settings)
    engine = Replay(records)
    made = Experiment.build(settings.run.changed(out=None), data=data)
    result = start(made, engine)
    return Reference(result.summary.state_sha256, result.records, engine.kept)


def told(records: list[Record]) -> list[dict[str, Any]]:
    """All a journal says, but not how long it took; as JSON has it."""
    changing = ("seconds", "activities")
    kept = [{k: v for k, v in r.items() if k not in changing} for r in records]
    found: list[dict[str, Any]] = json.loads(json.dumps(kept))
    return found
