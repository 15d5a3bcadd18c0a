"""A tuning or comparison that is stopped goes on where it was, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

import fedloom as fl
from helpers import LIMIT, finish, start_fedloom, wait_until

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "clients": 4,
    "partition": "dirichlet(alpha=0.3) + scarce(size=120)",
    "model": "mlp(hidden=[8])",
    "rounds": 4,
    "epochs": 2,
}
COMMAND = ["tune", "fedrep", "--trials", "4", "--quiet"]
COMMAND += [f"{key}={value}" for key, value in SETTINGS.items()]


def choices(folder: Path) -> dict[str, Any]:
    """All that was tried and chosen, without the time it took."""
    (method,) = json.loads((folder / "tune.json").read_text())["methods"]
    for timed in (method, *method["trials"]):
        del timed["cpu_seconds"]
    return dict(method)


def reports(folder: Path) -> int:
    """Rungs that trials have reached."""
    journal = folder / "trials.jsonl"
    return journal.read_text().count('"intermediate_value":') if journal.exists() else 0


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed tuning, in this process."""
    folder = tmp_path_factory.mktemp("straight")
    fl.tune(["fedrep"], **SETTINGS, trials=4, workers=1, out=str(folder))
    return folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda how: how.name)
def test_the_same_command_goes_on(straight: Path, tmp_path: Path, how: signal.Signals) -> None:
    process = start_fedloom(*COMMAND, "--out", tmp_path, "--workers", "2")
    wait_until(lambda: reports(tmp_path) >= 1)
    others = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, how)
    done = finish(process)
    assert len(others) >= 2
    assert not psutil.wait_procs(others, timeout=LIMIT)[1]
    if how == signal.SIGTERM:
        assert done.code == 130
        assert f"go on with: the same command with --out {tmp_path}" in done.err
    assert 1 <= reports(tmp_path) < reports(straight)
    fl.tune(["fedrep"], **SETTINGS, trials=4, workers=1, out=str(tmp_path))
    assert reports(tmp_path) == reports(straight)  # nothing was run twice
    assert choices(tmp_path) == choices(straight)


def started(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Two endless runs side by side: the main process, and all that it started."""
    settings = [f"{key}={value}" for key, value in {**SETTINGS, "rounds": 10**5}.items()]
    options = ["--seeds=2", "--workers=2", "--quiet", "--out", folder]
    process = start_fedloom("compare", "local", *settings, *options)
    wait_until(lambda: len(list(folder.glob("*/metrics.jsonl"))) == 2)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_runs_side_by_side_end_with_the_comparison(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C reaches the whole group, as in a terminal."""
    process, others = started(tmp_path)
    send = os.killpg if how == signal.SIGINT else os.kill
    send(process.pid, how)
    done = finish(process)
    assert len(others) >= 2
    assert not psutil.wait_procs(others, timeout=LIMIT)[1]
    if how == signal.SIGINT:
        assert done.code == 130
        assert done.err.count("\n") == 1, done.err
        assert "go on with: the same command" in done.err


def test_a_process_that_is_lost_is_one_sentence(tmp_path: Path) -> None:
    """The last one that began, of as many processes as runs: nothing else is handed over later."""
    process, others = started(tmp_path)
    max(others, key=lambda one: (one.create_time(), one.pid)).kill()
    done = finish(process)
    assert done.code == 1
    assert done.err.count("\n") == 1, done.err
    assert "a process that ran beside others ended" in done.err
