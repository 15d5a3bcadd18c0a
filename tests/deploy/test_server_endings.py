"""How a run ends at the server that does not end well, and what the guard leaves on record."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from fedloom.audit import AuditLog
from fedloom.deploy import apps
from fedloom.deploy.apps import without_traceback
from fedloom.deploy.guard import requests
from fedloom.deploy.guard.connections import Connections
from fedloom.deploy.guard.requests import Guard, Rules
from fedloom.deploy.guard.serve import _record
from fedloom.deploy.processes.federation import Run
from fedloom.deploy.project.folder import PROJECT, Project
from fedloom.deploy.project.new import write_project
from fedloom.deploy.project.schema import Schema
from fedloom.deploy.server.audit import AUDIT, record_event
from fedloom.deploy.server.site_registry import SiteRegistry
from fedloom.engines.flower.in_process import LocalGrid
from fedloom.errors import DiskError, OutOfMemory, TooFewClients

SCHEMA = Schema(kind="table", shape=(3,), class_names=("no", "yes"))


@pytest.mark.parametrize(("error", "shown"), [(TooFewClients, False), (ZeroDivisionError, True)])
def test_a_sentence_that_says_all_comes_without_a_traceback(
    error: type[Exception], shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As Flower logs what a server app raises; another error's traceback stays."""
    flower = logging.getLogger("flwr")
    flower.addFilter(without_traceback)
    try:
        raise error("0 sites take part")
    except error as e:
        with caplog.at_level(logging.ERROR, "flwr"):
            flower.log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=e)
    finally:
        flower.removeFilter(without_traceback)
    (record,) = (record for record in caplog.records if record.name == "flwr")
    text = logging.Formatter().format(record)
    assert text.startswith("ServerApp raised an exception")
    assert ("Traceback" in text) == shown


def test_refused_requests_are_on_record_a_line_for_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a flood the log has one line in ten minutes, with how many there were."""
    project: Project = write_project(tmp_path / "study", ["a", "b"], tls=False)
    rules = Rules(lambda: {"server"}, None, None, most_body=10, body_seconds=1)
    guard = Guard(nobody, rules, Connections(10, 10), _record(project))
    clock = [1000.0]
    monkeypatch.setattr("fedloom.deploy.guard.requests.time.monotonic", lambda: clock[0])
    for _ in range(50):
        assert ask(guard, host=b"evil") == 421
    assert ask(guard, length=b"99") == 413
    clock[0] += requests.RECORD_SECONDS
    assert ask(guard, host=b"evil") == 421
    lines = [x for x in AuditLog(project.root / AUDIT).lines() if x["event"] == "requests refused"]
    assert [(x["status"], x["count"]) for x in lines] == [(421, 1), (413, 1), (421, 50)]
    assert lines[0]["example"] == "10.0.0.9 /v1/fleet/x: this server is not called evil"


def test_a_failed_run_is_told_by_the_servers_own_sentence(tmp_path: Path) -> None:
    """Flower's last words are of an unhandled exception."""
    project: Project = write_project(tmp_path / "study", ["a", "b"], tls=False, schema=SCHEMA)
    record_event(project.root, "run failed", run="6", sentence="another one")
    record_event(project.root, "run failed", run="7", sentence="0 sites take part")
    run = Run(project, {}, tmp_path / "run.log")
    (tmp_path / "run.log").write_text("Successfully started run 7\nAn unhandled exception\n")
    assert run.failure() == "0 sites take part"
    (tmp_path / "run.log").write_text("Successfully started run 8\n")
    assert run.failure() == ""


def test_a_server_without_memory_says_so_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every command does. Flower would tell of an unhandled exception, and the log nothing."""
    project: Project = write_project(tmp_path / "study", ["a", "b"], tls=False, schema=SCHEMA)

    def starved(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("fedloom.deploy.server.run.serve", starved)
    monkeypatch.setenv(PROJECT, str(project.root))
    monkeypatch.setattr(apps, "end_with_parent", lambda: None)
    context = Context(5, 1, {}, RecordDict(), project.config)
    handlers = apps.log.handlers
    try:
        with pytest.raises(OutOfMemory, match="the server app is out of memory; give the machine"):
            apps.main(LocalGrid(ClientApp(), 1), context)
    finally:
        apps.log.handlers = handlers
    (line,) = AuditLog(project.root / AUDIT).lines()
    assert line["event"] == "run failed"
    assert "the server app is out of memory" in line["sentence"]


def test_a_disk_that_takes_no_list_of_sites_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A soak found a traceback here, where the disk had become read-only."""

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    project: Project = write_project(tmp_path / "study", ["a", "b"], tls=False, schema=SCHEMA)
    registry = SiteRegistry(tmp_path / "sites.json", project.settings(), SCHEMA)
    monkeypatch.setattr("fedloom.files.os.open", read_only)
    with pytest.raises(DiskError, match=r"cannot write .*sites.json \(Read-only file system\)"):
        registry.write()


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("it was passed on")


def ask(guard: Guard, host: bytes = b"server", length: bytes = b"0") -> int:
    """One request of a site, with its head alone; the status of the answer."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "path": "/v1/fleet/x",
        "client": ("10.0.0.9", 5),
        "server": ("127.0.0.1", 9092),
        "headers": [(b"host", host), (b"content-length", length)],
    }
    asyncio.run(guard(scope, receive, send))
    return statuses[0]
