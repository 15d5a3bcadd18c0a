"""`fedloom deploy local`: link and nodes with TLS and keys, a run, models, and a clean end."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import psutil
from watching import command, listening, marked

from fedloom.core.wire import unpack
from fedloom.deploy.processes.rehearsal import newest_shared
from fedloom.deploy.project.folder import Project
from fedloom.deploy.site.client import SiteData
from fedloom.deploy.site.config import SiteConfig
from fedloom.serving.model import PersonalModel
from helpers import LIMIT, finish, start_fedloom, wait_until

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.xdist_group("rehearsal"),
    pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals"),
]
MARK = "FEDLOOM_TEST"
"""Environment variable by which all processes of a test are known."""


def running(mark: str) -> list[psutil.Process]:
    """What the test started and still runs."""
    return marked(MARK, mark)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Marks every process that a test starts."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return value


def test_a_rehearsal_leaves_models_and_no_process(mark: str, tmp_path: Path) -> None:
    """A link and two nodes listen, each on one port, all on 127.0.0.1; in the end none runs."""
    folder = tmp_path / "kept"
    process = start_fedloom(
        *("deploy", "local", "--nodes", "2", "--tls", "--rounds", "2", "--keep", folder)
    )
    seen: set[tuple[str, int]] = set()
    end = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < end:
        seen |= listening(running(mark))
        time.sleep(1.0)
    done = finish(process)
    assert done.code == 0, done.err
    assert not running(mark), list(map(command, running(mark)))
    assert {host for host, _ in seen} == {"127.0.0.1"}
    assert len(seen) == 3, seen
    project = Project.read(folder)
    sites = project.settings().sites
    assert len(sites) == 2
    assert all(f"sites/{name}/state/first/model" in done.out for name in sites)
    for name in sites:
        check_personal(project, name)
    check_server(project)


def check_personal(project: Project, name: str) -> None:
    """A site's saved model is better on its test rows than to always say what is most frequent."""
    site = SiteData(SiteConfig.read(project.site(name)), project.settings())
    test = site.divided.partition.clients[0].test
    y = np.asarray(site.source.y)[test]
    personal = PersonalModel.load(site.config.state / "first" / "model")
    probabilities = personal.predict(np.asarray(site.source.x)[test])
    assert probabilities.shape == (len(test), 10)
    right = float((probabilities.argmax(1).numpy() == y).mean())
    assert right > max(0.5, np.bincount(y).max() / len(y) + 0.1), name


def check_server(project: Project) -> None:
    """The server has FedPer's body and no head: neither by name, nor in the bytes of any file.

    That such bytes would be found shows in the body's, which are.
    """
    shared = newest_shared(project.out(project.settings()))
    tensors = {k: v for tree in unpack(shared.read_bytes()).values() for k, v in tree.items()}
    body = [v.numpy().tobytes() for k, v in tensors.items() if k.startswith("body.")]
    assert body
    assert not any(key.startswith("head.") for key in tensors)
    stored = [p.read_bytes() for p in (project.root / "server").rglob("*") if p.is_file()]
    assert all(any(part in data for data in stored) for part in body)
    for name in project.settings().sites:
        state = SiteConfig.read(project.site(name)).state / "first"
        (tensors,) = (state / "model").glob("personal-*.safetensors")
        personal = unpack(tensors.read_bytes())
        heads = [v for tree in personal.values() for k, v in tree.items() if k.startswith("head.")]
        secrets = [v.numpy().tobytes() for v in heads]
        secrets += [p.read_bytes() for p in (state / "states").iterdir()]
        assert len(secrets) >= 3
        assert not any(secret in data for secret in secrets for data in stored)


def test_ctrl_c_ends_every_process(mark: str, tmp_path: Path) -> None:
    process = start_fedloom("deploy", "local", "--nodes", "2", "--keep", tmp_path / "kept")
    try:
        wait_until(lambda: len(listening(running(mark))) == 3, pause=0.5)
    finally:
        os.kill(process.pid, signal.SIGINT)
        done = finish(process)
    assert done.code == 130, done.err
    assert "every process was ended" in done.err
    assert not running(mark), list(map(command, running(mark)))


def test_what_takes_too_long_is_told_and_ended(mark: str, tmp_path: Path) -> None:
    done = finish(start_fedloom("deploy", "local", "--timeout", "1", "--keep", tmp_path / "k"))
    assert done.code == 1
    assert "the SuperLink was not ready in 1 s" in done.err
    assert not running(mark), list(map(command, running(mark)))
