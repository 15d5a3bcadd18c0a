"""A short soak: every trouble of `benchmarks/soak.py` in one run, which ends as if left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import LIMIT

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts are Linux's"),
]


def test_a_run_with_every_trouble_is_the_run_without(tmp_path: Path) -> None:
    """The disk is full and read-only only where the test may mount one of its own.

    Trouble comes late, as on a machine that is quick at rounds: it must find the run at work.
    """
    results = tmp_path / "soak.json"
    words = ["--rounds", "40", "--kills", "2", "--seed", "1", "--late", "1"]
    words += ["--scratch", str(tmp_path / "scratch"), "--results", str(results)]
    done = subprocess.run(
        [sys.executable, SOAK, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())["engines"]["inline"]
    assert found["lost"] == []
    assert all(found["same"].values()), found["same"]
    assert found["tried"]["kill"] == 2
    assert {"term", "ctrl_c", "protected", "memory"} <= found["tried"].keys()
    assert "memory, not felt" not in found["tried"]
    assert found["rounds_again"]["most"] <= 5  # rounds between two checkpoints
