"""How seconds per round and peak memory grow with the population and with the participants.

    python benchmarks/scale.py                        # everything; CIFAR-10 needs FEDLOOM_DATA
    python benchmarks/scale.py population --method fedper --clients 1000 10000 --engine inline
    python benchmarks/scale.py fedpac_server

Groups:

* `population`: 100 to a million clients of 18 rows of digits each, 100 of them per round.
* `million`: a million such clients, 1,000 of them per round.
* `participants`: 30 to 1,000 of 10,000 such clients per round.
* `rows`: 100 of 1,000 clients per round, with 18 to 576 rows each.
* `parameters`: the same with 18 rows, and networks of 1,210 to 76,810 numbers.
* `cifar10`: FedPAC on 1,000 clients of 50 rows, 30 per round (the setting of its Table 9).
* `fedpac_server`: what FedPAC's server does in a round of 30, 100 and 300 participants.

Every reading is taken in a process of its own, which runs as a user's run does: in a folder, with
journal and checkpoints. Only participants are scored. A round's seconds are a watcher's, the
median counts. CPU seconds are those of all processes together, from their start: compare by them
where the machine does other work, too. `ready_MB` is the main process before the first round,
`peak_MB` the peaks of all processes together, where pages of the data that workers share count for
each (Linux only). Then a line is fitted by least squares. All of it goes to
`benchmarks/results/scale.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fedloom as fl
from fedloom.record import RoundRecord, Summary
from fedloom.runs.watcher import Watcher

RESULTS = Path(__file__).parent / "results" / "scale.json"
OVER = {
    "population": "clients",
    "participants": "cohort",
    "rows": "rows",
    "parameters": "parameters",
}
"""Groups through whose readings a line is fitted, and over what."""
GROUPS = (*OVER, "million", "cifar10", "fedpac_server")
ROWS = 18
WORKERS = 2
FEW = {"clients": 1_000, "cohort": 100}
Case = dict[str, Any]
Reading = dict[str, Any]

# ------------------------------------------------------------------ what is measured


def cases(args: argparse.Namespace) -> dict[str, list[Case]]:
    """The cases of every group that was asked for."""
    base: Case = {"rounds": args.rounds}
    variants = [
        {**base, "method": method, "engine": engine}
        for method in args.method
        for engine in args.engine
    ]
    made = {
        "population": [
            {**v, "clients": n, "cohort": min(100, n)} for v in variants for n in args.clients
        ],
        "participants": [
            {**v, "clients": args.of, "cohort": min(m, args.of)}
            for v in variants
            for m in args.participants
        ],
        "rows": [{**v, **FEW, "rows": ROWS * n} for v in variants for n in (1, 2, 4, 8, 16, 32)],
        "parameters": [
            {**v, **FEW, "model": f"mlp(hidden=[{n}])", "parameters": 75 * n + 10}
            for v in variants
            for n in (16, 64, 256, 1024)
        ],
        "million": [
            {**v, "rounds": min(6, args.rounds), "clients": 1_000_000, "cohort": 1_000}
            for v in variants
        ],
        "cifar10": [
            {"rounds": 6, "method": "fedpac", "engine": "pool", "clients": 1000, "cohort": 30}
        ],
        "fedpac_server": [{"cohort": m, "repeat": 5} for m in args.server],
    }
    return {group: [{"group": group, **c} for c in made[group]] for group in args.groups}


def measure(case: Case) -> Reading:
    """One reading, in this process."""
    if case["group"] == "fedpac_server":
        return server_step(case)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fedloom-scale-") as folder:
        timer = _run(case, Path(folder) / "run")
    rounds, main = _spans(timer.marks), _megabytes("VmHWM")
    return {
        **case,
        "setup_seconds": round(timer.marks[0] - begun, 3),
        "setup_cpu_seconds": round(timer.cpu[0], 3),
        "seconds_per_round": round(statistics.median(rounds), 4),
        "mean_seconds_per_round": round(statistics.mean(rounds), 4),
        "cpu_seconds_per_round": round(statistics.median(_spans(timer.cpu)), 4),
        "all_seconds": [round(s, 4) for s in rounds],
        "ready_MB": round(timer.ready, 1),
        "peak_MB": round(main + timer.workers, 1),
        "main_process_MB": round(main, 1),
        "workers_MB": round(timer.workers, 1),
        "accuracy": round(timer.accuracy, 4),
    }


class Timer(Watcher):
    """Notes when each round ended, and what was in memory before the first."""

    def begun(self, run: fl.RunView) -> None:
        self.ready = _megabytes("VmRSS")
        self.marks, self.cpu = [time.perf_counter()], [_cpu_seconds()]

    def step(self, run: fl.RunView, record: RoundRecord) -> None:
        self.marks.append(time.perf_counter())
        self.cpu.append(_cpu_seconds())
        self.workers = sum(_megabytes("VmHWM", pid) for pid in _workers())

    def ended(self, run: fl.RunView, summary: Summary) -> None:
        self.accuracy = summary.accuracy


def _spans(marks: Sequence[float]) -> list[float]:
    """Of every round but the first, which also warms up, and the last, which also scores."""
    spans = [after - before for before, after in pairwise(marks)]
    return spans[1:-1] or spans


def _run(case: Case, out: Path) -> Timer:
    from fedloom.launch.start import engine_of, start
    from fedloom.runs.experiment import Experiment

    data = None if case["group"] == "cifar10" else digits(case["clients"], case.get("rows", ROWS))
    experiment = Experiment.build(_config(case, out), None, data)
    timer = Timer()
    with engine_of(experiment.config) as engine:
        start(experiment, engine, [timer])
    return timer


def _config(case: Case, out: Path) -> Any:
    from fedloom.runs.config import RunConfig

    given = {
        "method": case["method"],
        "rounds": case["rounds"],
        "participation": case["cohort"] / case["clients"],
        "eval_every": case["rounds"],
        "protocol": "cohort",  # testing all of 100,000 clients takes longer than training 100
        "engine": case["engine"],
        "workers": WORKERS,
        "checkpoint_every": 5,
        "out": str(out),
    }
    if case["group"] == "cifar10":
        return RunConfig.checked(given | cifar10(case["clients"]))
    return RunConfig.checked({**given, "data": "digits tiled", "model": case.get("model", "mlp")})


def digits(clients: int, rows_each: int = ROWS) -> Any:
    """Digits again and again, as many rows for each client."""
    import numpy as np

    from fedloom.data import Source, federate, load

    once = load("digits")
    rows = np.arange(clients * rows_each) % len(once)
    source = Source.from_arrays(once.x[rows], np.asarray(once.y)[rows], name="digits tiled")
    return federate(source, "iid", clients)


def cifar10(clients: int) -> dict[str, Any]:
    """FedPAC's section C.9: 50 rows each, by the paper's default partition.

    `sharing`: the dominant classes have fewer rows than 1,000 clients need.
    """
    return {
        "data": "cifar10",
        "partition": "dominant(uniform=0.2, size=50, sharing=true)",
        "clients": clients,
        "split": "fedpac(test_size=50, sharing=true)",
        "model": "cnn_fedpac",
        "epochs": 5,
        "batch_size": 50,
        "lr": 0.01,
        "momentum": 0.5,
        "weight_decay": 5e-4,
    }


def server_step(case: Case) -> Reading:
    """Send, collect and aggregate for a cohort that trained one step each on CIFAR-10."""
    from fedloom.core.round import merge, send
    from fedloom.core.threads import one_thread

    with one_thread():
        r, ups = _uploads(case["cohort"])
        spent: dict[str, list[float]] = {"send": [], "collect": [], "aggregate": []}
        before = time.process_time()
        for _ in range(case["repeat"]):
            again = _fresh(r)
            spent["send"].append(_timed(lambda r=again: [send(r, cid) for cid in ups]))
            spent["collect"].append(
                _timed(lambda r=again: [r.add(cid, up) for cid, up in ups.items()])
            )
            spent["aggregate"].append(_timed(lambda r=again: merge(r)))
        cpu = time.process_time() - before
    total = [sum(parts) for parts in zip(*spent.values(), strict=True)]
    median = {k: statistics.median(v) for k, v in {"": total, **spent}.items()}
    named = {f"{k}_seconds".lstrip("_"): round(v, 4) for k, v in median.items()}
    return {**case, **named, "cpu_seconds": round(cpu / case["repeat"], 4)}


def _uploads(cohort: int) -> tuple[Any, dict[int, Any]]:
    """A round of FedPAC and its real uploads; few steps, because training is not the point."""
    from fedloom.core.client import client
    from fedloom.core.round import Round, initial_server, send
    from fedloom.core.site import Visit
    from fedloom.runs.config import RunConfig
    from fedloom.runs.experiment import Experiment

    settings = {**cifar10(1000), "method": "fedpac", "steps": 1, "rounds": 1}
    settings.pop("epochs")
    experiment = Experiment.build(RunConfig.checked(settings))
    program, plan = experiment.program, experiment.plans[0]
    r = Round(program, plan, initial_server(program), program.cohort(plan, cohort / 1000))
    ups = {}
    for cid in r.cohort:
        ups[cid], _ = client(Visit(program, cid, experiment.data.client(cid), send(r, cid)))
    return r, ups


def _fresh(r: Any) -> Any:
    return type(r)(r.program, r.plan, r.server, r.cohort)


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _megabytes(what: str, process: int | str = "self") -> float:
    """Resident memory of a process, now (VmRSS) or at most so far (VmHWM).

    Not `getrusage`: for a process that another one started, it begins with the other one's memory.
    """
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


def _cpu_seconds() -> float:
    """Of this process and the engine's, from their start, of the system too."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pid in _workers()]
    spent = [sum(map(int, stat.split()[11:13])) for stat in stats]  # utime and stime
    return time.process_time() + sum(spent) / ticks


def _workers() -> list[int]:
    """The engine's processes, found among the children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]


# ------------------------------------------------------------------ what is made of it


def fits(group: str, readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """Lines through the readings of each method and engine."""
    if group not in OVER:
        return []
    x = OVER[group]
    values = ("setup_cpu_seconds", "cpu_seconds_per_round", "ready_MB", "peak_MB")
    found = []
    for name, rows in _grouped(readings):
        if len({row[x] for row in rows}) > 1:
            found += [{"of": name, **line(rows, x, value)} for value in values]
    return found


def line(rows: Sequence[Reading], x: str, y: str) -> dict[str, Any]:
    """Least squares of y = a + b x.

    >>> rows = [{"n": 1, "s": 3.0}, {"n": 2, "s": 5.0}, {"n": 4, "s": 9.0}]
    >>> line(rows, "n", "s")
    {'fit': 's = a + b n', 'a': 1.0, 'b': 2.0, 'worst_gap': 0.0}
    """
    import numpy as np

    at, of = (np.array([row[k] for row in rows], dtype=float) for k in (x, y))
    b, a = np.polyfit(at, of, 1)
    gap = float(np.abs((a + b * at) / of - 1).max())
    short = {"a": float(f"{a:.6g}"), "b": float(f"{b:.6g}"), "worst_gap": round(gap, 4)}
    return {"fit": f"{y} = a + b {x}", **short}


def _grouped(readings: Sequence[Reading]) -> Iterator[tuple[str, list[Reading]]]:
    names = dict.fromkeys(f"{r['method']}, {r['engine']}" for r in readings)
    for name in names:
        yield name, [r for r in readings if f"{r['method']}, {r['engine']}" == name]


def table(readings: Sequence[Reading]) -> str:
    """The readings in columns."""
    hidden = ("group", "all_seconds", "repeat")
    keys = [k for k in readings[0] if k not in hidden]
    rows = [keys, *([str(r[k]) for k in keys] for r in readings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(keys))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in rows)


def save(group: str, readings: list[Reading], lines: list[dict[str, Any]], path: Path) -> None:
    """Replace one group in the result file; others stay as they were measured."""
    from fedloom.files import write_json
    from fedloom.runs.folder import current_versions

    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    versions = {**current_versions(), "threads": 1, "cpus": os.cpu_count()}
    known[group] = {"versions": versions, "readings": readings, "fits": lines}
    write_json(path, dict(sorted(known.items())))


def in_process(case: Case) -> Reading:
    """`measure` in a fresh process."""
    call = [sys.executable, __file__, "--case", json.dumps(case)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"{case} ended with code {done.returncode}")
    reading: Reading = json.loads(done.stdout.splitlines()[-1])
    return reading


def arguments() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", default=GROUPS, help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--method", nargs="+", default=["fedavg", "fedper"])
    parser.add_argument("--engine", nargs="+", default=["inline", "pool"])
    parser.add_argument("--clients", nargs="+", type=int, default=[10**n for n in range(2, 7)])
    parser.add_argument("--participants", nargs="+", type=int, default=[30, 100, 300, 1_000])
    parser.add_argument("--of", type=int, default=10_000, help="clients of group participants")
    parser.add_argument("--server", nargs="+", type=int, default=[30, 100, 300])
    parser.add_argument("--rounds", type=int, default=22)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if strange := set(args.groups) - set(GROUPS):
        parser.error(f"there is no group {min(strange)!r}; there are {', '.join(GROUPS)}")
    return args


def main() -> None:
    """Measure, print and save, one group after another."""
    args = arguments()
    if args.case is not None:
        print(json.dumps(measure(args.case)))
        return
    for group, wanted in cases(args).items():
        readings = []
        for case in wanted:
            print(group, {k: v for k, v in case.items() if k != "group"}, flush=True)
            readings.append(in_process(case))
        lines = fits(group, readings)
        print(table(readings))
        for found in lines:
            print("{of}: {fit}, a = {a}, b = {b}, off by {worst_gap:.1%} at most".format(**found))
        save(group, readings, lines, args.results)


if __name__ == "__main__":
    main()
