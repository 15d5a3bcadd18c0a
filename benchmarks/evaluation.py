"""What evaluations cost: whole ones, now and at an earlier commit, and passes of several sizes.

    python benchmarks/evaluation.py                  # some minutes; needs the data sets

First, the test rows of all 20 clients of a Dirichlet(0.1) partition, and of 99 clients of 18 rows,
each scored with the model as the client receives it: two processes, one with the earlier source,
evaluate in turns, after one evaluation that does not count. Then passes of several sizes over
random rows: what a row of the logits takes in evaluation mode, and whether the size changes a bit
of them. Predictions take as many rows as `fedloom.core.outputs.rows_per_prediction` says. CPU
seconds and one thread everywhere.
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
from typing import Any

import torch
from earlier import HERE, unpacked
from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
CPU = torch.device("cpu")
BEFORE = "7c3bcfa"
EARLIER = 512
"""Rows per pass at that commit."""
TO_REACH = 1 / 0.6
SIZES = (8, 16, 32, 64, 128, 256, EARLIER)
RUNS: dict[str, dict[str, Any]] = {
    "99 small clients, mlp on digits": {
        "model": "mlp",
        "data": "digits",
        "partition": "iid",
        "clients": 99,
        "engine": "vectorized",
    },
    "cnn4 on fashion_mnist": {"model": "cnn4", "data": "fashion_mnist"},
    "cnn4 on cifar10": {"model": "cnn4", "data": "cifar10"},
    "resnet18 on cifar10": {"model": "resnet18", "data": "cifar10"},
    "resnet18 on pacs": {"model": "resnet18", "data": "pacs"},
}
ALL_RUNS = {"method": "fedavg", "partition": "dirichlet(alpha=0.1)", "clients": 20}
NETWORKS: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("mlp", (1, 28, 28), 2048),
    ("cnn4", (1, 28, 28), 1024),
    ("cnn4", (3, 32, 32), 1024),
    ("resnet18", (3, 32, 32), 512),
    ("resnet18", (3, 64, 64), 512),
)
"""Expression, the shape of a row, and rows in all."""


def main() -> None:
    """Measure and write; inside a child process, evaluate a run whenever a line comes in."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    asked.add_argument("--turns", type=int, default=5)
    asked.add_argument("--repeats", type=int, default=3, help="of passes")
    asked.add_argument("--serve", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.serve:
        serve(json.loads(given.serve))
        return
    from fedloom.core.threads import on_one_thread
    from fedloom.files import write_json
    from fedloom.runs.folder import current_versions

    on_one_thread()
    record: dict[str, Any] = {
        "command": f"python benchmarks/evaluation.py {' '.join(sys.argv[1:])}".strip(),
        "before": BEFORE,
        "to_reach": round(TO_REACH, 2),
        "cores": os.cpu_count(),
        "versions": current_versions(),
        "runs": [],
        "networks": [],
    }
    with tempfile.TemporaryDirectory(prefix="fedloom-evaluation-") as folder:
        roots = {"before": unpacked(BEFORE, Path(folder)), "now": HERE}
        for name in given.runs:
            record["runs"].append(in_turns(name, roots, given.turns))
            print(record["runs"][-1], flush=True)
    for name, shape, rows in NETWORKS:
        record["networks"].append(passes(name, shape, rows, given.repeats))
        print(record["networks"][-1], flush=True)
    record["load_average"] = os.getloadavg()
    write_json(RESULTS, record)


# ------------------------------------------------------------------ whole evaluations


def serve(settings: dict[str, Any]) -> None:
    """CPU seconds and accuracies of one evaluation of all clients, for every line that comes in."""
    from fedloom.core.evaluate import Ask
    from fedloom.core.message import Plan
    from fedloom.core.round import Round, initial_server, send
    from fedloom.engines import Job, make_engine
    from fedloom.runs.config import RunConfig
    from fedloom.runs.experiment import Experiment

    try:
        from fedloom.core.threads import one_thread
    except ImportError:  # where it was before
        from fedloom.runs.runner import one_thread

    experiment = Experiment.build(RunConfig.model_validate(settings))
    program = experiment.program
    engine = make_engine(settings.get("engine", "inline"))
    engine.open(program, experiment.data)
    plan = Plan(1, seed=program.seed, clients=program.clients)
    with one_thread():
        r = Round(program, plan, initial_server(program))
        for _ in sys.stdin:
            begun = time.process_time()
            scored = engine.evaluate(
                range(program.clients), lambda cid: Job(cid, send(r, cid), None), Ask(("received",))
            )
            accuracies = [accuracy(scores) for _, scores in sorted(scored)]
            seconds = time.process_time() - begun
            rows = sum(len(experiment.data.client(i).test or ()) for i in range(program.clients))
            print(json.dumps({"cpu_seconds": seconds, "rows": rows, "accuracies": accuracies}))
            sys.stdout.flush()


def accuracy(scores: Any) -> float | None:
    """Of a client's scores, which once were a dictionary; None where it has no test rows."""
    if isinstance(scores, dict):
        return next((one["accuracy"] for one in scores.values()), None)
    return next((one.metrics["accuracy"] for one in scores), None)


def in_turns(name: str, roots: dict[str, Path], turns: int) -> dict[str, Any]:
    """One run, evaluated by both codes."""
    servers = {way: _started(RUNS[name], root) for way, root in roots.items()}
    readings: dict[str, list[dict[str, Any]]] = {way: [] for way in servers}
    for turn in range(turns + 1):
        for way in list(servers)[:: 1 if turn % 2 else -1]:
            to, back = servers[way].stdin, servers[way].stdout
            assert to is not None
            assert back is not None
            to.write("go\n")
            to.flush()
            readings[way].append(json.loads(back.readline()))
    for server in servers.values():
        server.communicate()
    seconds = {way: [r["cpu_seconds"] for r in some[1:]] for way, some in readings.items()}
    ratios = list(map(_ratio, seconds["before"], seconds["now"]))
    return {
        "run": name,
        "rows": readings["now"][0]["rows"],
        **{f"{way}_cpu_seconds": round(median(some), 3) for way, some in seconds.items()},
        "times_as_fast": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "reached": median(ratios) >= TO_REACH,
        "same_accuracies": readings["before"][0]["accuracies"] == readings["now"][0]["accuracies"],
        "all_cpu_seconds": seconds,
    }


def _started(run: dict[str, Any], root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--serve", json.dumps({**ALL_RUNS, **run})]
    env = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)


# ------------------------------------------------------------------ passes of several sizes


def passes(name: str, shape: tuple[int, ...], count: int, repeats: int) -> dict[str, Any]:
    """One network in passes of all sizes."""
    from fedloom.core.outputs import rows_per_prediction
    from fedloom.core.rng import rng_scope
    from fedloom.core.tree import place
    from fedloom.models import build_model

    @torch.no_grad()
    def scanned(rows: int) -> Tensor:
        return torch.cat([net(w, place(part, CPU))[net.logits] for part in x.split(rows)])

    with rng_scope("evaluation", name):
        net, x = build_model(name, shape, 10, seed=0), torch.rand(count, *shape)
    w = {key: place(value, CPU) for key, value in net.tree().items()}
    spent: dict[int, list[float]] = {size: [] for size in SIZES}
    logits: dict[int, Tensor] = {}
    for _ in range(repeats):
        for size in SIZES:
            begun = time.process_time()
            logits[size] = scanned(size)
            spent[size].append(1e6 * (time.process_time() - begun) / count)
    return {
        "network": name,
        "shape": list(shape),
        "rows_per_prediction": rows_per_prediction(net),
        "microseconds_a_row": {size: round(median(all_), 1) for size, all_ in spent.items()},
        "same_bits": {size: torch.equal(z, logits[EARLIER]) for size, z in logits.items()},
    }


def _ratio(before: float, now: float) -> float:
    return before / now


if __name__ == "__main__":
    main()
