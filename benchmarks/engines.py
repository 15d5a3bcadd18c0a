"""Seconds per round and memory of the engines, for many small clients that all take part.

    python benchmarks/engines.py                                  # everything
    python benchmarks/engines.py --clients 100 --method fedper --rounds 4 --repeats 1

Engines take turns, each reading in a process of its own, which is in a network namespace of its own
(Ray reaches out when it starts), so this needs `unshare -n`. Clients have 18 rows of digits and an
mlp. A round's seconds are a watcher's; the first round, which warms up, and the last, which is
scored, do not count, and the median of all others is what is reported. Memory is read after the
last round, of every process of the run: `resident` is what it holds, `shared` the part of that
which is a file or shared memory, and `proportional` counts a page that k processes share as 1/k in
each, so that only this one may be added up (Linux only). All readings of an engine must end with
the same bytes. All of it goes to `benchmarks/results/engines.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import scale

import fedloom as fl
from fedloom.record import RoundRecord, Summary
from fedloom.runs.watcher import Watcher

RESULTS = Path(__file__).parent / "results" / "engines.json"
ENGINES = ("inline", "pool", "ray", "flower")
WORKERS = 2
Case = dict[str, Any]
Reading = dict[str, Any]


class Watch(Watcher):
    """Notes when each round ended."""

    def begun(self, run: fl.RunView) -> None:
        self.marks = [time.perf_counter()]

    def step(self, run: fl.RunView, record: RoundRecord) -> None:
        self.marks.append(time.perf_counter())

    def ended(self, run: fl.RunView, summary: Summary) -> None:
        self.summary = summary
        self.processes = [memory(pid) for pid in (os.getpid(), *descendants(os.getpid()))]


def measure(case: Case) -> Reading:
    """One reading, in this process."""
    from fedloom.engines import make_engine
    from fedloom.launch.start import start
    from fedloom.runs.config import RunConfig
    from fedloom.runs.experiment import Experiment

    config = RunConfig.checked(
        {
            "method": case["method"],
            "data": "digits tiled",
            "model": "mlp",
            "rounds": case["rounds"],
            "eval_every": case["rounds"],
            "protocol": "cohort",
            "memory": 4096,
        }
    )
    experiment = Experiment.build(config, None, scale.digits(case["clients"]))
    watch, begun = Watch(), time.perf_counter()
    engine = make_engine(case["engine"], WORKERS)
    try:
        start(experiment, engine, [watch])
    finally:
        engine.close()
    rounds = [after - before for before, after in pairwise(watch.marks)]
    return {
        "start_seconds": round(watch.marks[0] - begun, 3),
        "first_round_seconds": round(rounds[0], 4),
        "seconds": [round(s, 4) for s in rounds[1:-1]],
        "transfer_seconds": round(_transfer(watch.summary) / case["rounds"], 4),
        "state_sha256": watch.summary.state_sha256,
        "processes": watch.processes,
    }


def _transfer(summary: Summary) -> float:
    """Seconds that all processes together spent on packing, sending and unpacking."""
    return sum(spent.get("transfer", 0.0) for spent in summary.activities.values())


def memory(pid: int) -> dict[str, Any]:
    """Megabytes of one process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split()[0]: int(line.split()[1]) / 1024 for line in rollup}
    private = found["Private_Clean:"] + found["Private_Dirty:"]
    return {
        "process": _name(pid),
        "resident_MB": round(found["Rss:"], 1),
        "shared_MB": round(found["Rss:"] - private, 1),
        "proportional_MB": round(found["Pss:"], 1),
    }


def _name(pid: int) -> str:
    """What a process is: an engine's worker, a part of Ray, or the main process.

    A Ray worker calls itself by its class; Ray's other parts are scripts and programs.
    """
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    if pid == os.getpid():
        return "main"
    if any("spawn_main" in word for word in words):
        return "worker"
    if any("resource_tracker" in word for word in words):
        return "resource tracker"
    told = next((w for w in words if w.endswith(".py") and "/ray/" in w), words[0])
    return Path(told).name


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return sorted(found)


# ------------------------------------------------------------------ what is made of it


def in_turns(case: Case, repeats: int) -> dict[str, Any]:
    """All engines on one case, again and again; what each of them took."""
    readings: dict[str, list[Reading]] = {engine: [] for engine in case["engines"]}
    for i in range(repeats):
        for engine in case["engines"] if i % 2 == 0 else case["engines"][::-1]:
            readings[engine].append(in_namespace({**case, "engine": engine}))
    digests = {r["state_sha256"] for some in readings.values() for r in some}
    if len(digests) > 1:
        sys.exit(f"{case}: the engines' bytes differ")
    return {
        "method": case["method"],
        "clients": case["clients"],
        "rows": scale.ROWS,
        "rounds": case["rounds"],
        "state_sha256": digests.pop(),
        "engines": {engine: summed(some) for engine, some in readings.items()},
    }


def summed(readings: list[Reading]) -> Reading:
    """Readings of one engine: medians over repeats, memory of the last one."""
    seconds = [s for reading in readings for s in reading["seconds"]]
    processes = readings[-1]["processes"]
    return {
        "seconds_per_round": round(statistics.median(seconds), 4),
        "spread": [min(seconds), max(seconds)],
        "first_round_seconds": statistics.median(r["first_round_seconds"] for r in readings),
        "start_seconds": statistics.median(r["start_seconds"] for r in readings),
        "transfer_seconds": statistics.median(r["transfer_seconds"] for r in readings),
        "proportional_MB": round(sum(p["proportional_MB"] for p in processes), 1),
        "all_seconds": [r["seconds"] for r in readings],
        "processes": processes,
    }


def in_namespace(case: Case) -> Reading:
    """`measure` in a fresh process that sees no network but loopback."""
    inside = 'ip link set lo up && exec "$@"'
    call = ["unshare", "-n", "sh", "-c", inside, "sh", sys.executable, __file__]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*call, "--case", json.dumps(case)], stdout=subprocess.PIPE, text=True, check=False, env=env
    )
    if done.returncode:
        sys.exit(f"{case} ended with code {done.returncode}")
    reading: Reading = json.loads(done.stdout.splitlines()[-1])
    return reading


def table(found: list[dict[str, Any]]) -> str:
    """Seconds per round and megabytes, a line for each case."""
    engines = list(found[0]["engines"])
    rows = [["method", "clients", *(f"{e} s" for e in engines), *(f"{e} MB" for e in engines)]]
    for case in found:
        told = [case["engines"][e] for e in engines]
        values = [t[k] for k in ("seconds_per_round", "proportional_MB") for t in told]
        rows.append([case["method"], str(case["clients"]), *map(str, values)])
    return "\n".join("  ".join(cell.rjust(12) for cell in row) for row in rows)


def arguments() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", nargs="+", default=["fedavg", "fedper"])
    parser.add_argument("--engine", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error("the first round and the last do not count: give --rounds 3 or more")
    return args


def main() -> None:
    """Measure, print and save."""
    args = arguments()
    if args.case is not None:
        print(json.dumps(measure(args.case)))
        return
    from fedloom.files import write_json
    from fedloom.runs.folder import current_versions

    found = []
    for method in args.method:
        for clients in args.clients:
            case = {"method": method, "clients": clients, "rounds": args.rounds}
            print(case, flush=True)
            found.append(in_turns({**case, "engines": args.engine}, args.repeats))
    print(table(found))
    args.results.parent.mkdir(parents=True, exist_ok=True)
    versions = {**current_versions(), "ray": version("ray"), "threads": 1, "cpus": os.cpu_count()}
    write_json(args.results, {"versions": versions, "workers": WORKERS, "cases": found})


if __name__ == "__main__":
    main()
