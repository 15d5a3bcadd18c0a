"""Metrics, logs, backup and restore beside a link, nodes and a run that are really there."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from trouble import MARK, Place, change_waits, lapse, wait_gone
from watching import marked

from fedloom.audit import verify
from fedloom.deploy.processes.children import Child, free_ports
from fedloom.deploy.processes.rehearsal import approved_at_sites, digits_project
from fedloom.deploy.project.folder import Project
from fedloom.record import RoundRecord, Summary
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_record, read_records
from helpers import LIMIT, fedloom

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("operations"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard needs Linux"),
]
ROUNDS = 4
LOG_BYTES = 2000
DEPLOY = f"""
from fedloom.deploy.cli import deploy_app
from fedloom.deploy.operations.log_lines import RotatingLog
RotatingLog.__init__.__defaults__ = ({LOG_BYTES}, 5)
deploy_app()
"""
"""`fedloom deploy` whose logs rotate early."""


class Operated:
    """A server and its sites, each started by the command that an administrator gives."""

    def __init__(self, root: Path) -> None:
        self.project = Project.read(root)
        self.logs = root.parent / f"logs of {root.name}"
        self.children: dict[str, Child] = {}
        self.metrics: dict[str, str] = {}

    def start(self, name: str, *words: object) -> Child:
        command = [sys.executable, "-c", DEPLOY, *map(str, words)]
        child = Child(name, command, dict(os.environ), self.logs / f"{name}.out")
        self.children[name] = child.start()
        return child

    def serve(self, name: str, command: str, what: Path) -> None:
        """A link or a node, with metrics and a log of its own."""
        self.metrics[name] = f"127.0.0.1:{free_ports(1)[0]}"
        options = ("--metrics", self.metrics[name], "--log", self.logs / f"{name}.log")
        self.start(name, command, what, *options)

    def up(self) -> None:
        self.serve("link", "link", self.project.root)
        self.wait_logged("link", "the SuperLink listens at")
        for name in self.project.settings().sites:
            self.serve(name, "node", self.project.site(name))
        for name in self.project.settings().sites:
            self.wait_logged(name, "SuperNode ID:")

    def logged(self, name: str) -> str:
        """All that a command wrote to its log, oldest first; nothing while it rotates."""
        files = sorted(self.logs.glob(f"{name}.log*"), reverse=True)
        with suppress(FileNotFoundError):
            return "".join(file.read_text() for file in files)
        return ""

    def wait_logged(self, name: str, words: str) -> None:
        self.children[name].ready(lambda: words in self.logged(name), LIMIT)

    def get(self, name: str, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.metrics[name]}{path}", timeout=LIMIT) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    def numbers(self, name: str) -> dict[str, float]:
        """Prometheus's samples, by name and labels."""
        lines = [line for line in self.get(name, "/metrics").splitlines() if line[0] != "#"]
        return {sample: float(value) for sample, _, value in (x.rpartition(" ") for x in lines)}

    def sha256(self) -> str:
        return read_record(self._run.summary, Summary).state_sha256

    def rounds(self) -> list[int]:
        return [record.round for record in read_records(self._run.metrics, RoundRecord)]

    @property
    def _run(self) -> RunPaths:
        return RunPaths(self.project.out(self.project.settings()) / "run")

    def told(self) -> str:
        """What all of them printed last, without the frames of tracebacks."""
        plain = {
            name: [line for line in child.output().splitlines() if not line.startswith("│")]
            for name, child in self.children.items()
        }
        return "\n".join(f"{name}: {line}" for name, lines in plain.items() for line in lines[-60:])

    def end(self) -> None:
        for name in reversed(self.children):
            self.children[name].end(LIMIT)


@contextmanager
def operated(root: Path) -> Iterator[Operated]:
    federation = Operated(root)
    try:
        federation.up()
        yield federation
    finally:
        federation.end()


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Two sites that approved, of which one can be held; no process of the test is left at its
    end."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    change_waits(monkeypatch)
    project = digits_project(tmp_path / "study", 2, True, {"rounds": ROUNDS})
    app = Path(__file__).with_name("misbehaving.py")
    shutil.copy(app, project.root / "federation" / "client_app.py")
    for name in approved_at_sites(project, by="test"):
        Place(project.site(name).parent).trouble({})
    yield project
    wait_gone(marked(MARK, mark))


def test_a_federation_is_watched_backed_up_while_it_runs_and_goes_on_elsewhere(
    study: Project, tmp_path: Path
) -> None:
    """The run that goes on is the one that was not interrupted; what was restored from backups of
    its midst, when the sites were at their third round, has to end with the same bytes. (A site
    whose backup has the third answer, too, would be asked for it over other files, and refuse the
    fourth as one more than was approved.)"""
    saved = {"study": tmp_path / "study.tar.gz"}
    places = [Place(study.site(name).parent) for name in study.settings().sites]
    for place in places:
        place.trouble({"first 3": "held before"})
    with operated(study.root) as federation:
        run = federation.start("run", "run", study.root)
        steps = 'fedloom_steps_total{experiment="first"}'
        run.ready(lambda: all(place.held("first 3") for place in places), LIMIT)
        assert federation.numbers("link")[steps] == 2
        back_up(study.root, saved["study"])
        for name in study.settings().sites:
            saved[name] = tmp_path / f"{name}.tar.gz"
            back_up(study.site(name), saved[name])
        assert run.alive, run.tail()
        check_numbers(federation)
        for place in places:
            place.go("first 3")
        assert run.wait(LIMIT) == 0, run.tail()
        assert federation.numbers("link")[steps] == ROUNDS
        assert federation.rounds() == [1, 2, 3, 4]
        straight = federation.sha256()
    for name in ("link", *study.settings().sites):
        check_log(federation, name)
    restored = restore(study, saved, tmp_path / "elsewhere")
    shutil.rmtree(study.root)
    with operated(restored) as federation:
        assert federation.rounds() == [1, 2]
        run = federation.start("run", "run", restored)
        assert run.wait(LIMIT) == 0, federation.told()
        assert federation.rounds() == [1, 2, 3, 4]
        assert federation.sha256() == straight
        for name in federation.project.settings().sites:
            verify(restored / "sites" / name / "state" / "audit.jsonl")
        verify(restored / "server" / "audit.jsonl")


def back_up(what: Path, file: Path) -> None:
    done = fedloom("deploy", "backup", str(what), str(file))
    assert done.code == 0, done.err


def restore(study: Project, saved: dict[str, Path], root: Path) -> Path:
    """Server and sites in another folder; the rows, which no backup has, are put there by hand."""
    done = fedloom("deploy", "restore", str(saved["study"]), str(root))
    assert done.code == 0, done.err
    for name in study.settings().sites:
        folder = root / "sites" / name
        shutil.rmtree(folder, ignore_errors=True)
        done = fedloom("deploy", "restore", str(saved[name]), str(folder))
        assert done.code == 0, done.err
        assert not (folder / "data.npz").exists()
        shutil.copy(study.site(name).parent / "data.npz", folder)
        Place(folder).trouble({})
    lapse(Project.read(root), *study.settings().sites)  # it was backed up while they were there
    return root


def check_numbers(federation: Operated) -> None:
    link, site = federation.numbers("link"), federation.numbers("site-1")
    assert federation.get("link", "/health") == federation.get("site-1", "/health") == "ok\n"
    assert link["fedloom_up"] == site["fedloom_up"] == 1
    assert link['fedloom_audit_events_total{event="round"}'] >= 1
    assert abs(link['fedloom_last_step_timestamp_seconds{experiment="first"}'] - time.time()) < 600
    lines = (federation.project.site("site-1").parent / "state" / "audit.jsonl").read_text()
    events = [json.loads(line) for line in lines.splitlines()]
    later = sum(line["bytes"] for line in events if line["event"] == "sent")
    assert 0 < site["fedloom_sent_bytes_total"] <= later
    assert 0 < site["fedloom_folder_bytes"] < site["fedloom_folder_most_bytes"] == 10**10


def check_log(federation: Operated, name: str) -> None:
    """It rotated while link or node ran, with no line torn or lost in between."""
    files = sorted(federation.logs.glob(f"{name}.log*"))
    assert len(files) >= 2, name
    assert all(file.stat().st_size < 2 * LOG_BYTES for file in files)
    lines = federation.logged(name).splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    assert [line[:20] for line in lines] == sorted(line[:20] for line in lines)
    assert "\x1b" not in federation.logged(name)
    assert (federation.logs / f"{name}.out").read_text() == ""
