"""How long it takes to compare six methods in 18 small runs, and to tune with 18 trials: one run
after another, every run on the pool, whole runs side by side.

    python benchmarks/side_by_side.py

Runs that take about a minute together, and a tuning of ten seconds, where the start weighs more.
Whole processes take turns, with their start; all ways must end with the same bytes, or the same
choice. Run it on a machine that does nothing else. Reported are medians of the clock's seconds, and
of the ratios of neighbours with their spread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "side_by_side.json"
TO_REACH = 1.7
SETTINGS = ["--clients=20", "--partition=dirichlet(alpha=0.3)", "--quiet"]
PLAIN, POOL, BESIDE = "one after another", "clients side by side", "runs side by side"
WAYS = {
    PLAIN: ["--engine=inline", "--workers=1"],
    POOL: ["--engine=pool", "--workers=2"],
    BESIDE: ["--engine=inline", "--workers=2"],
}


@dataclass(frozen=True)
class Work:
    """A command, the ways it can go, and what must be the same whichever it goes."""

    command: list[str]
    rounds: int
    ways: tuple[str, ...]
    outcome: Callable[[Path], Any]


def states(folder: Path) -> Any:
    """The digests of a comparison's states."""
    rows = json.loads((folder / "comparison.json").read_text())["methods"]
    return [seed["state_sha256"] for row in rows for seed in row["seeds"]]


def scores(folder: Path) -> Any:
    """Every score of a tuning's trials."""
    methods = json.loads((folder / "tune.json").read_text())["methods"]
    return [(trial["method"], trial["scores"]) for method in methods for trial in method["trials"]]


METHODS = ["local", "fedavg", "fedper", "fedrep", "ditto", "fedavg + dbe"]
TUNE = ["tune", "fedprox", "--trials=18", *SETTINGS]
WORK = {
    "compare": Work(["compare", *METHODS, "--seeds=3", *SETTINGS], 30, tuple(WAYS), states),
    "tune": Work(TUNE, 150, (PLAIN, BESIDE), scores),
    "tune, 30 rounds": Work(TUNE, 30, (PLAIN, BESIDE), scores),
}


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--repeats", type=int, default=5)
    repeats = asked.parse_args().repeats
    found = {"to_reach": TO_REACH, "versions": current_versions()}
    for name, work in WORK.items():
        found[name] = measured(work, repeats)
        write_json(RESULTS, found)


def measured(work: Work, repeats: int) -> dict[str, Any]:
    """All ways in turns."""
    seconds: dict[str, list[float]] = {way: [] for way in work.ways}
    outcomes = set()
    for _ in range(repeats):
        for way in work.ways:
            took, outcome = timed(work, WAYS[way])
            seconds[way].append(took)
            outcomes.add(json.dumps(outcome))
        print({way: round(all_[-1], 1) for way, all_ in seconds.items()}, flush=True)
    ratios = {
        way: [a / b for a, b in zip(seconds[PLAIN], seconds[way], strict=True)]
        for way in work.ways
        if way != PLAIN
    }
    return {
        "command": [*work.command, f"--rounds={work.rounds}"],
        "seconds": {way: [round(s, 2) for s in all_] for way, all_ in seconds.items()},
        "median": {way: round(median(all_), 2) for way, all_ in seconds.items()},
        "times_as_fast": {way: round(median(all_), 2) for way, all_ in ratios.items()},
        "spread": {way: [round(min(all_), 2), round(max(all_), 2)] for way, all_ in ratios.items()},
        "same_outcome": len(outcomes) == 1,
    }


def timed(work: Work, flags: list[str]) -> tuple[float, Any]:
    """Seconds of one command, and what it came to."""
    with tempfile.TemporaryDirectory(prefix="fedloom-beside-") as folder:
        out = Path(folder, "out")
        flags = [*flags, f"--rounds={work.rounds}", f"--out={out}"]
        command = [sys.executable, "-m", "fedloom.cli", *work.command, *flags]
        begun = time.perf_counter()
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return time.perf_counter() - begun, work.outcome(out)


if __name__ == "__main__":
    main()
