"""FedPAC's quadratic programs at the server: now, and as they were solved before.

    python benchmarks/fedpac_server.py                 # some minutes; CIFAR-10 needs FEDLOOM_DATA

Statistics of 1,000 clients with 50 rows of CIFAR-10 each (FedPAC's section C.9), by the network as
it begins; the first m of them take part. Both solvers take turns in one process, and CPU seconds
are counted, which a busy machine changes less than the clock. The solver of before comes from the
repository's history; from `--most` participants on it is left out. `--statistics` names a file that
keeps the statistics for the next time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from scale import cifar10
from torch import Tensor

from fedloom.core.threads import one_thread
from fedloom.files import write_json
from fedloom.ops.combination import combination_programs, combination_weights, head_statistics
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "fedpac_server.json"
BEFORE = "9e8f93b"
"""The last commit that solves every program from everyone."""
Solver = Callable[[dict[str, Tensor]], Tensor]


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--participants", type=int, nargs="+", default=[100, 300, 600, 1000])
    asked.add_argument("--most", type=int, default=601)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--statistics", type=Path)
    given = asked.parse_args()
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        before, kept = solver_of_before(Path(folder)), given.statistics or Path(folder) / "kept"
        if not kept.exists():
            save_file(statistics(max(given.participants)), kept)
        everyone = load_file(kept)
        record: dict[str, Any] = {
            "command": f"python benchmarks/fedpac_server.py {' '.join(sys.argv[1:])}".strip(),
            "before": BEFORE,
            "versions": current_versions(),
            "readings": [],
        }
        for m in given.participants:
            some = {key: value[:m] for key, value in everyone.items()}
            found = reading(some, before if m < given.most else None, given.repeats)
            print(found, flush=True)
            record["readings"].append(found)
            write_json(RESULTS, record)  # after each: whoever stops it keeps what was measured


def solver_of_before(folder: Path) -> Solver:
    """`combination_weights` of an earlier commit, under other module names."""
    for name in ("combination", "simplex_qp"):
        shown = ["git", "show", f"{BEFORE}:src/fedloom/ops/{name}.py"]
        source = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
        own = source.replace("fedloom.ops.simplex_qp", "before_simplex_qp")
        (folder / f"before_{name}.py").write_text(own)
    sys.path.insert(0, str(folder))
    solver: Solver = import_module("before_combination").combination_weights
    return solver


def statistics(clients: int) -> dict[str, Tensor]:
    """What so many clients upload in the first round, stacked."""
    settings = {**cifar10(1000), "method": "fedpac", "rounds": 1}
    experiment = Experiment.build(RunConfig.checked(settings))
    net = experiment.program.nets[0]
    found = []
    for cid in range(clients):
        split = experiment.data.client(cid).train
        with torch.no_grad():
            z = net(net.tree(), split.x(torch.arange(len(split))))[net.representation]
        found.append(head_statistics(z.flatten(1), split.y, 10, full=False))
    return {key: torch.stack([one[key] for one in found]) for key in found[0]}


def reading(of: dict[str, Tensor], before: Solver | None, repeats: int) -> dict[str, Any]:
    """CPU seconds of both, in turn, and how far apart their weights are."""
    spent: dict[str, list[float]] = {"before": [], "now": []}
    solvers = {"before": before, "now": combination_weights}
    weights = {}
    for _ in range(repeats):
        for name, solver in solvers.items():
            if solver is not None:
                begun = time.process_time()
                weights[name] = solver(of)
                spent[name].append(time.process_time() - begun)
    now = weights["now"]
    return {
        "participants": len(now),
        "mean_support": float((now > 0).sum(1).double().mean()),
        "cpu_seconds": {name: median(all_) for name, all_ in spent.items() if all_},
        "all_cpu_seconds": spent,
        "largest_difference": float((now - weights["before"]).abs().max()) if before else None,
        "largest_gap": largest_gap(of, now),
    }


def largest_gap(of: dict[str, Tensor], weights: Tensor) -> float:
    """By how much of its value a solution may be above the minimum: 2 (a'Ma - min Ma) / a'Ma."""
    everyone = torch.arange(len(weights))
    wide = {key: value.double() for key, value in of.items()}
    gaps = []
    programs = list(combination_programs(wide))
    for a, (matrix, _) in list(zip(weights, programs, strict=True))[::50]:  # of every fiftieth
        slope = matrix[everyone] @ a
        gaps.append(2 * float(1 - slope.min() / (a @ slope)))
    return max(gaps)


if __name__ == "__main__":
    main()
