"""CPU seconds of every diagnostic, now and by the code of an earlier commit.

    python benchmarks/diagnostics.py                 # some minutes; needs fashion_mnist

FedAvg with the 4-layer CNN on fashion_mnist, Dirichlet(0.1), 20 clients, one round; then some of
them are looked at in four layers on 500 rows, before and after local training. Each code runs in a
process of its own with one thread, they take turns over the same run folder, and CPU seconds are
counted, which a busy machine changes less than the clock. Training the clients and the features of
their layers are lines of their own: whatever diagnostic comes first would pay for them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from earlier import HERE, unpacked

RESULTS = Path(__file__).parent / "results" / "diagnostics.json"
BEFORE = "4b2f383"
"""The last commit before diagnostics were made faster."""
TRAINING, FEATURES = "local training", "features"
PICTURES = ("tsne", "ellipses")
"""Where points lie in a plane: a rotation of the features' last bits moves them."""
RUN = {
    "method": "fedavg",
    "data": "fashion_mnist",
    "partition": "dirichlet(alpha=0.1)",
    "model": "cnn4",
    "clients": 20,
    "rounds": 1,
    "engine": "inline",
}


def main() -> None:
    """Measure and write; inside a child process, measure one code."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--clients", type=int, default=20, help="to look at, of 20")
    asked.add_argument("--rows", type=int, default=500)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--only", default="", help="diagnostics, with commas; default: all")
    asked.add_argument("--run", type=Path, help="a run folder that is there already")
    asked.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.child:
        print(json.dumps(measured(given)))
        return
    from fedloom.files import write_json
    from fedloom.launch.start import run
    from fedloom.runs.folder import current_versions

    with tempfile.TemporaryDirectory(prefix="fedloom-diagnostics-") as folder:
        earlier = unpacked(BEFORE, Path(folder) / "earlier")
        given.run = given.run or Path(folder) / "run"
        if not given.run.exists():
            run(**RUN, out=str(given.run))
        readings: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
        for turn in range(given.repeats):
            roots = (("before", earlier), ("now", HERE))
            for name, root in roots[:: 1 if turn % 2 == 0 else -1]:
                readings[name].append(in_child(given, root))
                total = sum(readings[name][-1]["cpu_seconds"].values())
                print(f"turn {turn + 1}, {name}: {total:.1f} CPU s", flush=True)
    record = {
        "command": f"python benchmarks/diagnostics.py {' '.join(sys.argv[1:])}".strip(),
        "before": BEFORE,
        "run": RUN,
        "clients_looked_at": given.clients,
        "rows": given.rows,
        "layers": readings["now"][0]["layers"],
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": current_versions(),
        "failed_before": readings["before"][0]["failed"],
        "diagnostics": compared(readings),
    }
    write_json(RESULTS, record)
    print(json.dumps(record["diagnostics"], indent=1))


def in_child(given: argparse.Namespace, root: Path) -> dict[str, Any]:
    """The readings of one code, in a process that has imported nothing else."""
    command = [sys.executable, __file__, "--child", f"--rows={given.rows}", f"--run={given.run}"]
    command += [f"--clients={given.clients}", f"--only={given.only}"]
    env = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """What `study` does, with the CPU seconds of every diagnostic, and all results."""
    from fedloom.core.threads import one_thread
    from fedloom.diagnose.measure import Options, Skipped
    from fedloom.diagnose.registry import chosen, diagnostics
    from fedloom.diagnose.snapshots import Snapshots
    from fedloom.files import jsonable
    from fedloom.record import dump

    spent: dict[str, float] = {}
    snapshots = Snapshots.of(given.run, rows=given.rows, clients=given.clients)
    names = chosen(given.only or None)
    measures = {name: diagnostics()[name].measure(snapshots, Options()) for name in names}
    results: dict[str, Any] = {}
    layers: dict[str, int] = {}
    failed: dict[str, str] = {}
    with one_thread():
        for cid in snapshots.ids:
            client = snapshots.client(cid)
            with cpu_seconds(spent, TRAINING):
                models = client.before, client.after
            with cpu_seconds(spent, FEATURES):
                for model in models:
                    for sample in filter(None, (client.balanced, client.pool, client.test)):
                        model.features(sample)
            layers = dict(client.before.entries)
            for name in list(measures):
                try:
                    with cpu_seconds(spent, name):
                        measures[name].see(client)
                except ValueError as e:
                    failed[name] = str(e)
                    del measures[name], spent[name]
        for name, measure in measures.items():
            with cpu_seconds(spent, name):
                outcomes = list(measure.outcomes())
            for one in outcomes:
                if not isinstance(one.result, Skipped):
                    at = f"{name} {one.layer} {one.data} {one.snapshot}"
                    results[at] = jsonable(dump(one.result))
    return {"cpu_seconds": dict(spent), "layers": layers, "failed": failed, "results": results}


@contextmanager
def cpu_seconds(spent: dict[str, float], name: str) -> Iterator[None]:
    """Adds those of all threads."""
    begun = time.process_time()
    yield
    spent[name] = spent.get(name, 0.0) + time.process_time() - begun


def compared(readings: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """By diagnostic: median seconds of both codes, and how far apart their numbers are."""
    seconds = {
        way: {name: [one["cpu_seconds"][name] for one in some] for name in some[0]["cpu_seconds"]}
        for way, some in readings.items()
    }
    both = [
        name for name in seconds["now"] if name in seconds["before"]
    ]  # the earlier one may fail
    seconds = {way: {name: by_name[name] for name in both} for way, by_name in seconds.items()}
    for by_name in seconds.values():
        by_name["all"] = [sum(of_turn) for of_turn in zip(*by_name.values(), strict=True)]
    before, now = (readings[way][0]["results"] for way in ("before", "now"))
    return {
        name: {
            "before_cpu_seconds": round(median(seconds["before"][name]), 2),
            "now_cpu_seconds": round(median(seconds["now"][name]), 2),
            "times_as_fast": round(
                median(map(_ratio, seconds["before"][name], seconds["now"][name])), 2
            ),
            "all_cpu_seconds": {way: by_name[name] for way, by_name in seconds.items()},
            "largest_difference": largest_difference(name, before, now),
        }
        for name in seconds["now"]
    }


def _ratio(before: float, now: float) -> float:
    return before / max(now, 1e-3)


def largest_difference(name: str, before: dict[str, Any], now: dict[str, Any]) -> float | None:
    """Between the numbers of a diagnostic, beside one or the larger of both; None: not compared."""
    own = [at for at in before if at.split()[0] == name]
    if not own or name in PICTURES:
        return None
    if own != [at for at in now if at.split()[0] == name]:
        return math.inf
    pairs = [pair for at in own for pair in numbers(before[at], now[at])]
    return max((abs(a - b) / max(1.0, abs(a), abs(b)) for a, b in pairs), default=0.0)


def numbers(a: Any, b: Any) -> Iterator[tuple[float, float]]:
    """Pairs of numbers at the same places of two results; what else differs is infinitely far."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from numbers(a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for one, other in zip(a, b, strict=True):
            yield from numbers(one, other)
    elif isinstance(a, int | float) and isinstance(b, int | float):
        yield (0.0, 0.0) if a == b else (a, b)
    elif a != b:
        yield 0.0, math.inf


if __name__ == "__main__":
    main()
