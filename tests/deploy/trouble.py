"""A federation of four hospitals on loopback whose processes can be got into trouble."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from sites import digits_schema, gathered, with_policy, write_rows
from watching import command, marked, runs

from fedloom.core.digest import digest
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.revelations import REVELATIONS
from fedloom.core.tree import State
from fedloom.deploy.consent.decision import Desk
from fedloom.deploy.gate.assess import assess
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.processes.children import Child, flower_environment, free_ports
from fedloom.deploy.processes.federation import DeployedFederation, Run, app_of, is_connected
from fedloom.deploy.project.folder import Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.project.public_keys import PublicKeys
from fedloom.deploy.settings import Settings
from fedloom.engines import Absent, JobOf
from fedloom.engines.flower.site_store import SiteStore
from fedloom.engines.inline import Inline
from fedloom.launch.start import start
from fedloom.record import RoundRecord, Summary
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_record, read_records
from helpers import LIMIT, wait_until

A, B, C, D = NAMES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
KINDS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9, 0), (1, 4, 7))
MARK = "FEDLOOM_TEST"
"""Environment variable by which all processes of a test are known."""
DEPLOY = "from fedloom.deploy.cli import deploy_app; deploy_app()"
"""`fedloom deploy`."""
PERMISSIVE = f"""
allow = {json.dumps(list(REVELATIONS))}
least_participants = 1
"""
"""What the sites permit: whatever the tests' runs would reveal."""
FLOWER_WAITS = Path(__file__).with_name("flower_waits")


def troubled_project(folder: Path) -> Project:
    """A project with TLS and keys whose client app is `misbehaving.py`."""
    link, *ports = free_ports(1 + len(NAMES))
    run = {"method": "fedper", "model": "mlp(hidden=[16])", "batch_size": 16, "min_clients": 2}
    classes = {"class_names": tuple("0123456789")}
    project = write_project(
        folder, NAMES, port=link, ports=ports, run={**run, **classes}, schema=digits_schema()
    )
    app = Path(__file__).with_name("misbehaving.py")
    shutil.copy(app, project.root / "federation" / "client_app.py")
    for name, kinds in zip(NAMES, KINDS, strict=True):
        place = Place(project.site(name).parent)
        write_rows(place.folder / "data.npz", kinds)
        place.trouble({})
        site = project.site(name)  # these tests are about other things than what it permits
        site.write_text(with_policy(site.read_text(), PERMISSIVE))
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
        orders = ((*line["moment"].split(), line["own"]) for line in lines)
        return [(t, own) for name, t, own in orders if name == experiment]

    def states(self, experiment: str) -> set[str]:
        """Digests of the states on its disk."""
        return SiteStore(self.folder / "state" / experiment / "states").names()


class FederationUnderTest(DeployedFederation):
    """A federation of which every process, whoever started it, carries the test's mark.

    None of its sites runs until `up` is called.
    """

    def __init__(self, project: Project, mark: str) -> None:
        super().__init__(project)
        self.mark = mark
        self.places = {name: Place(project.site(name).parent) for name in NAMES}
        self.nodes[C] = supervised(project, C, self.logs / f"{C}.log")

    def submit(self, overrides: Mapping[str, Any] | None = None) -> Run:
        """Start a run that the operators of its sites have approved."""
        self.approve(overrides or {})
        return super().submit(overrides)

    def approve(self, overrides: Mapping[str, Any]) -> None:
        """As the operator of every site that takes part would."""
        run = Run(self.project, overrides, self.logs / "approved.log")
        for name in run.settings.sites:
            desk = Desk(self.project.site(name))
            desk.approve_beforehand(app_of(self.project), run.configuration, "test", _assess)

    def up(self, *names: str) -> None:
        """See that the link and these sites run."""
        if not self.link.alive:
            self.start_link(LIMIT)
        for name in names:
            if not self.nodes[name].alive:
                self.nodes[name].start()
        for name in names:
            self.nodes[name].ready(partial(is_connected, self.nodes[name]), LIMIT)

    def down(self, name: str) -> None:
        """See that a site does not run, and that the link knows."""
        if self.nodes[name].alive:
            self.nodes[name].end(LIMIT)
            lapse(self.project, name)

    @contextmanager
    def link_lost_and_found(self, *names: str) -> Iterator[None]:
        """The link goes in this block and comes back; at its end these sites have found it."""

        def times_found(name: str) -> int:
            # A site that was amid an answer, or a message, reaches the new link and is refused:
            # nobody waits there for the rest of what the old one had begun to take or to give.
            found = ("Connection successful after", "Giving up reconnection", "ended meanwhile")
            return sum(map(self.nodes[name].output().count, found))

        before = {name: times_found(name) for name in names}
        yield
        for name in names:
            self.nodes[name].ready(lambda name=name: times_found(name) > before[name], LIMIT)

    def wait_held(self, run: Run, name: str, moment: str) -> None:
        """Until a site is in the midst of that round of a run."""
        run.child.ready(partial(self.places[name].held, moment), LIMIT)

    def find(self, *words: str) -> list[psutil.Process]:
        """Processes of the test with all these words in their command."""
        return [p for p in marked(MARK, self.mark) if all(word in command(p) for word in words)]

    def kill(self, *words: str) -> None:
        """SIGKILL to the one process with these words in its command."""
        (process,) = self.find(*words)
        process.kill()
        wait_gone([process])

    def records(self, run: Run) -> list[RoundRecord]:
        """The journal so far."""
        return read_records(RunPaths(run.out / "run").metrics, RoundRecord)

    def sha256(self, run: Run) -> str:
        """Of all states after a run that ended."""
        return read_record(RunPaths(run.out / "run").summary, Summary).state_sha256

    def receipts(self, run: Run) -> dict[int, str]:
        """The state of every client that the server counts on."""
        newest = Checkpoints(RunPaths(run.out / "run").checkpoints).load_latest()[0]
        return {cid: digest(state) for cid, state in newest.clients.items()}


def _assess(file: Path, digest: str, with_app: bool) -> Assessment:
    """In this process."""
    return assess(file, digest, with_app, file.parent / "scratch")


def change_waits(patch: pytest.MonkeyPatch) -> None:
    """Of Flower's processes that are started from now on."""
    patch.setenv("PYTHONPATH", str(FLOWER_WAITS), prepend=os.pathsep)


def lapse(project: Project, *names: str) -> None:
    """Have the link find these sites silent, as it does a minute after a site has vanished.

    It refuses the next node with a site's key until then.
    """
    keys = PublicKeys(project.keys_folder)
    database = sqlite3.connect(project.root / "server" / "superlink.db", timeout=LIMIT)
    with closing(database), database:
        for node, key in database.execute("SELECT node_id, public_key FROM node").fetchall():
            if keys.name_of(key) in names:
                update = "UPDATE node SET online_until = min(online_until, ?) WHERE node_id = ?"
                database.execute(update, (time.time(), node))


def lapse_apps(project: Project) -> None:
    """Have the link find the server app silent, as it does a minute after that was killed.

    Sites that were told of a message which it then could not send wait for the rest until then.
    """
    database = sqlite3.connect(project.root / "server" / "superlink.db", timeout=LIMIT)
    with closing(database), database:
        now = datetime.now(UTC).isoformat(sep=" ")
        database.execute("UPDATE task SET active_until = ? WHERE active_until IS NOT NULL", (now,))


def wait_gone(processes: Sequence[psutil.Process]) -> None:
    """Until none of them runs."""
    wait_until(lambda: not any(map(runs, processes)), LIMIT, pause=0.1)


@contextmanager
def federation_under_test(folder: Path) -> Iterator[FederationUnderTest]:
    """A federation that leaves no process behind; one that does has failed."""
    mark = uuid.uuid4().hex
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(MARK, mark)
            patch.setenv("FEDLOOM_CACHE", str(folder / "cache"))
            change_waits(patch)
            project = troubled_project(folder / "project")
            with FederationUnderTest(project, mark) as federation:
                try:
                    yield federation
                finally:
                    federation.nodes[C].end(LIMIT)  # which has to end a node of its own
    finally:
        # Tests of the pool in this process start helpers of multiprocessing, which have the mark.
        started = [p for p in marked(MARK, mark) if "multiprocessing" not in command(p)]
        _, left = psutil.wait_procs(started, timeout=200)  # some are just ending
        lines = {process.pid: command(process) for process in left}
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert not lines, f"still running: {lines}"


def supervised(project: Project, name: str, log: Path) -> Child:
    """A site's SuperNode under `fedloom deploy node`, which starts it again where it ends."""
    words = [sys.executable, "-c", DEPLOY, "node", project.site(name), "--pause", "2"]
    return Child(f"the supervisor of {name}", words, flower_environment(project.home), log)


# ------------------------------------------------------------------ the same in one process


@dataclass(frozen=True)
class Attendance:
    """Who was asked in a step, and who of them did not answer, and why."""

    cohort: Sequence[int]
    absent: Mapping[int, str] = field(default_factory=dict)


@dataclass
class Replay(Inline):
    """The reference engine with the attendance of every step laid down."""

    attendance: Sequence[Attendance]
    kept: list[dict[int, str]] = field(default_factory=list)
    """For each step, the digests of what those kept who answered."""

    def __post_init__(self) -> None:
        super().__init__()

    def present(self, clients: int) -> Sequence[int]:
        return self.attendance[len(self.kept)].cohort

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        absent = self.attendance[len(self.kept)].absent
        self.kept.append({})
        for cid, up, own in super().clients([i for i in ids if i not in absent], job, ask):
            self.kept[-1][cid] = digest(own)
            yield cid, up, own
        for cid, why in absent.items():
            job(cid)  # it was sent
            yield cid, Absent(why), {}


@dataclass(frozen=True)
class Reference:
    """What a run has to come to."""

    sha256: str
    records: list[RoundRecord]
    kept: list[dict[int, str]]

    def state_before(self, cid: int, t: int) -> str | None:
        """The newest state of a client that was counted before round t; None: it is new."""
        counted = [step[cid] for step in self.kept[: t - 1] if cid in step]
        return counted[-1] if counted else None


def reference(project: Project, run: Run, attendance: Sequence[Attendance]) -> Reference:
    """The run in this process, with the same sites in every step."""
    settings: Settings = run.settings
    data = gathered([project.site(name) for name in settings.sites], settings)
    engine = Replay(attendance)
    experiment = Experiment.build(settings.run.changed(out=None), data=data)
    result = start(experiment, engine)
    return Reference(result.summary.state_sha256, without_times(result.records), engine.kept)


def replayed(project: Project, run: Run, records: Sequence[RoundRecord]) -> Reference:
    """The run in this process, sites being absent where a journal says so."""
    return reference(project, run, [Attendance(r.cohort, r.absent) for r in records])


def undisturbed(project: Project, run: Run, steps: int) -> Reference:
    """The run in this process, everybody taking part in every step."""
    return reference(project, run, [Attendance(range(len(run.settings.sites)))] * steps)


def without_times(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """All that a journal holds, but not how long it took."""
    return [replace(record, seconds=0.0, activities={}) for record in records]
