"""How long `fedloom run` takes from its start to its first round, and to its end, on digits.

    python benchmarks/start.py

CPU seconds, of the system too, of processes that take turns: `import torch` alone, one round of
FedAvg with four clients, and the same by the code of an earlier commit. Each runs twice: until
torch is imported or the first round begins, where it ends at once, and as a whole with what Python
does at its end. Reported are medians, and the medians of the ratios of neighbours.

Byte code is made before anything counts, as an installed package has it; where Python is told not
to write any (`PYTHONDONTWRITEBYTECODE`), a start takes longer.
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
from typing import Any

from earlier import HERE, unpacked

from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "start.json"
BEFORE = "66775c7"
NAMES = ("torch", "before", "now")
FLAGS = ["run", "--method=fedavg", "--data=digits", "--clients=4", "--rounds=1", "--engine=inline"]
RUN = "import sys; from fedloom.cli import main; sys.argv = ['fedloom', *{}]; main()"
UNTIL_FIRST_ROUND = """
import os
from contextlib import nullcontext
import fedloom.cli

class Watcher:
    def begun(self, run):
        os._exit(0)

fedloom.cli._loggers = lambda names: nullcontext([Watcher()])
"""


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--repeats", type=int, default=7)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedloom-start-") as folder:
        earlier = unpacked(BEFORE, Path(folder) / "earlier")
        run = RUN.format([*FLAGS, f"--out={folder}/run", "--overwrite"])
        parts = {
            "first_round": {
                "torch": "import torch, os; os._exit(0)",
                "run": UNTIL_FIRST_ROUND + run,
            },
            "whole": {"torch": "import torch", "run": run},
        }
        ways = {
            (part, name): (codes["torch" if name == "torch" else "run"], root)
            for part, codes in parts.items()
            for name, root in zip(NAMES, (HERE, earlier, HERE), strict=True)
        }
        byte_code = Path(folder) / "byte-code"
        for code, root in ways.values():  # byte code and caches of files, not counted
            cpu_seconds(code, root, byte_code)
        spent: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for _ in range(given.repeats):
            for way, (code, root) in ways.items():
                spent[way].append(cpu_seconds(code, root, byte_code))
            print({" ".join(way): round(all_[-1], 2) for way, all_ in spent.items()}, flush=True)
    record = {
        "command": f"python benchmarks/start.py {' '.join(sys.argv[1:])}".strip(),
        "before": BEFORE,
        "versions": current_versions(),
        "at_most": 1.3,
        **{part: compared({name: spent[part, name] for name in NAMES}) for part in parts},
    }
    write_json(RESULTS, record)


def compared(spent: dict[str, list[float]]) -> dict[str, Any]:
    """What each way took, and how many times as long as torch beside it."""
    ratios = {
        name: [one / torch for one, torch in zip(all_, spent["torch"], strict=True)]
        for name, all_ in spent.items()
        if name != "torch"
    }
    return {
        "cpu_seconds": {name: median(all_) for name, all_ in spent.items()},
        "all_cpu_seconds": spent,
        "times_torch": {name: median(all_) for name, all_ in ratios.items()},
        "spread": {name: [min(all_), max(all_)] for name, all_ in ratios.items()},
    }


def cpu_seconds(code: str, root: Path, byte_code: Path) -> float:
    """Of one process that runs this code with the package of a folder."""
    environment = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": str(root / "src"),
        "PYTHONPYCACHEPREFIX": str(byte_code),
        "OMP_NUM_THREADS": "1",
    }
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
