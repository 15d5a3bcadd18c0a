"""Flower's own simulation: plain `flwr run` with the app of a deployment gives the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import fedloom as fl
from fedloom.deploy.project.new import write_project
from helpers import LIMIT
from own_network import namespace

pytestmark = [pytest.mark.deployment, pytest.mark.xdist_group("ray")]

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray")
def test_flwr_run_gives_the_bytes_of_fedloom_run(tmp_path: Path) -> None:
    settings = {"method": "fedrep", "rounds": 2, "simulated_partition": "iid", "drop_last": False}
    project = write_project(tmp_path / "trial", ["a", "b"], run=settings)
    path = [str(HERE / "flower_waits"), str(HERE.parent)]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [*namespace(), sys.executable, HERE / "flwr_run.py", project.root, tmp_path / "home", "3"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    assert "fedloom: done" in done.stdout, done.stdout + done.stderr
    (summary,) = project.root.glob("server/runs/first/simulation-*/run/summary.json")
    simulated = json.loads(summary.read_text())["state_sha256"]
    ours = fl.run("fedrep", "digits", partition="iid", clients=3, rounds=2, protocol="cohort")
    assert simulated == ours.summary.state_sha256
