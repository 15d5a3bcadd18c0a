"""How long `fedloom run` takes from its start to its end on a task of nearly no work.

    python benchmarks/start.py

CPU seconds, of the system too, of whole processes that take turns: `import torch` alone, one round
of FedAvg with four clients on digits, and the same by the code of an earlier commit. Reported are
medians, and the medians of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from earlier import HERE, unpacked

from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "start.json"
BEFORE = "9e8f93b"
RUN = "import sys; from fedloom.cli import main; sys.argv = ['fedloom', *{}]; main()"
FLAGS = ["run", "--method=fedavg", "--data=digits", "--clients=4", "--rounds=1", "--engine=inline"]


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--repeats", type=int, default=7)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedloom-start-") as folder:
        earlier = unpacked(BEFORE, Path(folder) / "earlier")
        run = RUN.format([*FLAGS, f"--out={folder}/run", "--overwrite"])
        ways = {
            "torch": ("import torch", HERE),
            "before": (run, earlier),
            "now": (run, HERE),
        }
        for code, root in ways.values():  # byte code and caches of files, not counted
            cpu_seconds(code, root)
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.repeats):
            for name, (code, root) in ways.items():
                spent[name].append(cpu_seconds(code, root))
            print({name: round(all_[-1], 2) for name, all_ in spent.items()}, flush=True)
    ratios = {
        name: [one / torch for one, torch in zip(spent[name], spent["torch"], strict=True)]
        for name in ("before", "now")
    }
    record = {
        "command": f"python benchmarks/start.py {' '.join(sys.argv[1:])}".strip(),
        "before": BEFORE,
        "versions": current_versions(),
        "cpu_seconds": {name: median(all_) for name, all_ in spent.items()},
        "all_cpu_seconds": spent,
        "times_torch": {name: median(all_) for name, all_ in ratios.items()},
        "spread": {name: [min(all_), max(all_)] for name, all_ in ratios.items()},
        "at_most": 1.3,
    }
    write_json(RESULTS, record)


def cpu_seconds(code: str, root: Path) -> float:
    """Of one process that runs this code with the package of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
