"""Real processes on loopback: link and nodes with TLS and keys, runs, models, and a clean end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sites import together
from watching import listening, with_environment

from helpers import finish, start_fedloom, wait_until

pytest.importorskip("flwr")

import fedloom as fl
from fedloom.core.wire import unpack
from fedloom.deploy.certificates import write_key_pair
from fedloom.deploy.federation import DeployedFederation, Run, is_connected, supernode
from fedloom.deploy.personal import Personal
from fedloom.deploy.processes import ChildFailed, free_ports
from fedloom.deploy.project import Project
from fedloom.deploy.rehearsal import digits_project, newest_shared
from fedloom.deploy.site import SiteData
from fedloom.deploy.site_config import SiteConfig
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import Journal

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks into /proc for what is left behind"
)
METHODS = {"bias": "fedavg + dbe", "heads": "fedpac", "variates": "scaffold"}
"""One with a term, one with a download for each client, one with state at both ends."""
PATIENCE = 600.0


def running(mark: str) -> set[int]:
    """What the test started and still runs."""
    return with_environment("FEDLOOM_TRIAL", mark)


def commands(pids: set[int]) -> list[str]:
    """What they are, for a message."""
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Marks every process that a test starts."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("FEDLOOM_TRIAL", mark)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return mark


# ------------------------------------------------------------------ the rehearsal


def test_a_rehearsal_leaves_models_and_no_process(trial: str, tmp_path: Path) -> None:
    """A link and three nodes listen, each on one port, all on 127.0.0.1; in the end none runs."""
    folder = tmp_path / "kept"
    process = start_fedloom(
        *("deploy", "local", "--nodes", "3", "--tls", "--rounds", "2", "--keep", folder)
    )
    seen: set[tuple[str, int]] = set()
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        seen |= listening(running(trial))
        time.sleep(0.3)
    done = finish(process, 60)
    assert done.code == 0, done.err
    assert not running(trial), commands(running(trial))
    assert {host for host, _ in seen} == {"127.0.0.1"}
    assert len(seen) == 4, seen
    project = Project.read(folder)
    sites = project.settings().sites
    assert len(sites) == 3
    assert all(f"sites/{name}/state/first/model" in done.out for name in sites)
    for name in sites:
        check_personal(project, name)
    check_server(project)


def check_personal(project: Project, name: str) -> None:
    """A site's saved model is better on its test rows than to always say what is most frequent."""
    site = SiteData(SiteConfig.read(project.site(name)), project.settings())
    test = site.divided.partition.clients[0].test
    y = np.asarray(site.source.y)[test]
    personal = Personal.load(site.config.state / "first" / "model")
    said = personal.predict(np.asarray(site.source.x)[test])
    assert said.shape == (len(test), 10)
    right = float((said.argmax(1).numpy() == y).mean())
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


def test_ctrl_c_ends_every_process(trial: str, tmp_path: Path) -> None:
    process = start_fedloom("deploy", "local", "--keep", tmp_path / "kept")
    try:
        wait_until(lambda: len(listening(running(trial))) == 4, PATIENCE)
    finally:
        os.kill(process.pid, signal.SIGINT)
        done = finish(process, 120)
    assert done.code == 130, done.err
    assert "every process was ended" in done.err
    assert not running(trial), commands(running(trial))


def test_what_takes_too_long_is_told_and_ended(trial: str, tmp_path: Path) -> None:
    done = finish(start_fedloom("deploy", "local", "--timeout", "1", "--keep", tmp_path / "k"), 120)
    assert done.code == 1
    assert "the SuperLink was not ready in 1 s" in done.err
    assert not running(trial), commands(running(trial))


# ------------------------------------------------------------------ a deployment that stays up


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedFederation]:
    """A link and three nodes for all tests that follow."""
    scratch = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", str(scratch / "cache"))
        project = digits_project(scratch / "project", 3, tls=True, method="fedavg", rounds=2)
        with DeployedFederation(project) as started:
            started.start(PATIENCE)
            yield started
            assert len(started.processes()) >= 8  # each of the four has a SuperExec
    assert started.processes() == []


@pytest.fixture(scope="module")
def runs(federation: DeployedFederation) -> dict[str, Run]:
    """All at once: experiments do not get in each other's way."""
    submitted = {
        name: federation.submit({"experiment": name, "method": method})
        for name, method in METHODS.items()
    }
    submitted["too many"] = federation.submit(
        {"experiment": "vain", "clients": 4, "min_clients": 4, "patience": 3}
    )
    return submitted


@pytest.mark.parametrize("name", METHODS)
def test_a_deployment_gives_the_bytes_of_one_process(
    name: str, runs: dict[str, Run], federation: DeployedFederation
) -> None:
    """States of the server and of every site, and all scores, after two rounds."""
    runs[name].wait(PATIENCE)
    project, settings = federation.project, federation.project.settings()
    data = together([project.site(site) for site in settings.sites], settings)
    inline = fl.run(
        METHODS[name],
        data,
        rounds=2,
        protocol="cohort",
        min_clients=3,
    )
    folder = RunPaths(runs[name].out / "run")
    assert folder.path == federation.project.root / "server" / "runs" / name / "run"
    records = Journal.read(folder.metrics)
    summary = json.loads(folder.summary.read_text())
    assert summary.state_sha256 == inline.summary.state_sha256
    assert summary.accuracy == inline.accuracy
    assert [r["scores"] for r in records] == [r["scores"] for r in inline.records]
    assert [r["loss"] for r in records] == [r["loss"] for r in inline.records]


def test_a_run_that_fails_is_told_with_the_server_s_reason(runs: dict[str, Run]) -> None:
    """It waits for four sites where there are three."""
    with pytest.raises(ChildFailed, match=r"(?s)finished:failed.*3 sites are connected, fewer"):
        runs["too many"].wait(PATIENCE)


def ask(project: Project, path: str, source: str) -> int:
    """Status of a request to the link from one of this machine's loopback addresses."""
    assert project.link.ca is not None
    context = ssl.create_default_context(cafile=str(project.link.ca))
    link = http.client.HTTPSConnection(
        "127.0.0.1", project.link.port, timeout=30, source_address=(source, 0), context=context
    )
    try:
        link.request("POST", path, body=b"")
        return link.getresponse().status
    finally:
        link.close()


def test_other_machines_may_only_do_what_sites_do(federation: DeployedFederation) -> None:
    """127.0.0.2 stands for another machine. Runs are submitted under /v1/control, and tasks taken
    under /v1/runtime; Flower itself asks nobody there who they are."""
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
        assert ask(federation.project, path, "127.0.0.2") == 403
    assert ask(federation.project, "/v1/control/list-runs", "127.0.0.1") != 403
    assert ask(federation.project, "/v1/fleet/activate-node", "127.0.0.2") != 403


def test_a_key_that_is_not_registered_is_refused(
    federation: DeployedFederation, tmp_path: Path
) -> None:
    known = federation.sites["site-1"]
    write_key_pair(tmp_path / "other.key", tmp_path / "other.pub", "other")
    (port,) = free_ports(1)
    config = known.model_copy(
        update={"key": tmp_path / "other.key", "port": port, "state": tmp_path / "state"}
    )
    node = supernode(federation.project.site("site-1"), config, tmp_path / "log")
    try:
        node.start()
        wait_until(lambda: not node.alive or is_connected(node), 120)
        assert not is_connected(node)
        assert node.code != 0
    finally:
        node.end()
