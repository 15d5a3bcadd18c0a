"""How long a comparison of 18 small runs takes: one after another, on the pool, side by side.

    python benchmarks/side_by_side.py

Whole processes take turns, with their start; all ways must end with the same bytes. Run it on a
machine that does nothing else. Reported are medians of the clock's seconds, and of the ratios of
neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "side_by_side.json"
METHODS = ["local", "fedavg", "fedper", "fedrep", "ditto", "fedavg + dbe"]
FLAGS = ["--seeds=3", "--clients=20", "--rounds=30", "--partition=dirichlet(alpha=0.3)", "--quiet"]
WAYS = {
    "one after another": ["--engine=inline", "--workers=1"],
    "clients side by side": ["--engine=pool", "--workers=2"],
    "runs side by side": ["--engine=inline", "--workers=2"],
}


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--repeats", type=int, default=5)
    repeats = asked.parse_args().repeats
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    digests: set[str] = set()
    for _ in range(repeats):
        for way, flags in WAYS.items():
            took, digest = measured(flags)
            seconds[way].append(took)
            digests.add(digest)
        print({way: round(all_[-1], 1) for way, all_ in seconds.items()}, flush=True)
    plain, *others = WAYS
    write_json(
        RESULTS,
        {
            "runs": 3 * len(METHODS),
            "flags": FLAGS,
            "seconds": {way: [round(s, 2) for s in all_] for way, all_ in seconds.items()},
            "median": {way: round(median(all_), 2) for way, all_ in seconds.items()},
            "times_as_fast": {
                way: round(
                    median(a / b for a, b in zip(seconds[plain], seconds[way], strict=True)), 2
                )
                for way in others
            },
            "same_bytes": len(digests) == 1,
            "versions": current_versions(),
        },
    )


def measured(flags: list[str]) -> tuple[float, str]:
    """Seconds of one comparison, and the digests of its states."""
    with tempfile.TemporaryDirectory(prefix="fedloom-compare-") as folder:
        command = [sys.executable, "-m", "fedloom.cli", "compare", *METHODS, *FLAGS, *flags]
        begun = time.perf_counter()
        subprocess.run(
            [*command, f"--out={folder}/c"], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        took = time.perf_counter() - begun
        rows = json.loads(Path(folder, "c", "comparison.json").read_text())["methods"]
    return took, json.dumps([seed["state_sha256"] for row in rows for seed in row["seeds"]])


if __name__ == "__main__":
    main()
