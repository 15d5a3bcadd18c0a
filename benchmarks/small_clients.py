"""A round of 1,000 small clients, now and at an earlier commit, round by round in turns.

    python benchmarks/small_clients.py

Clients have 18 rows of digits and an mlp; all take part, on a pool of two workers. Two processes,
one with the earlier source, have a run open each and play their rounds one after the other, now the
one first and now the other. The first round, which warms up and tries out blocks, and the last,
which is scored, do not count. A round has its seconds by the clock and the CPU seconds of all its
processes; where other programs run beside it, only these can be compared (resolution: 10 ms a
process). A ratio is the median over pairs of neighbours. Both must end with the same bytes. All of
it goes to `benchmarks/results/small_clients.json`, with the load of the machine and, as `--note`
tells it, what else ran there.
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
from pathlib import Path
from typing import Any

from earlier import unpacked

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "small_clients.json"
METHODS = ("fedper", "fedavg", "fedavg + dbe", "scaffold", "ditto", "fedrep", "fedcr")
ROWS = 18
WORKERS = 2
TICKS = os.sysconf("SC_CLK_TCK")
BEFORE = "7c3bcfa"
"""The commit that is compared with."""
TO_REACH = 3.0
Reading = dict[str, Any]


# ------------------------------------------------------------------ one version, in its process


def serve() -> None:
    """Play the runs that are asked for, a round for every line that comes in."""
    from fedloom.engines import make_engine
    from fedloom.runs.config import RunConfig
    from fedloom.runs.experiment import Experiment
    from fedloom.runs.watcher import Watcher

    try:
        from fedloom.launch.start import start
    except ImportError:  # where it was before
        from fedloom.runs.launch import start

    class InTurns(Watcher):
        """Waits for its turn before every round and tells what the round took."""

        def begun(self, *_: Any) -> None:
            self._wait()

        def step(self, *told: Any) -> None:
            seconds, cpu = time.perf_counter() - self.clock, _cpu_of_family() - self.cpu
            kind = _value(told[-1], "kind")
            say({"kind": kind, "seconds": round(seconds, 4), "cpu_seconds": round(cpu, 2)})
            self._wait()

        def ended(self, *told: Any) -> None:
            say({"state_sha256": _value(told[-1], "state_sha256")})

        def _wait(self) -> None:
            sys.stdin.readline()
            self.clock, self.cpu = time.perf_counter(), _cpu_of_family()

    engine = make_engine("pool", WORKERS)
    try:
        for line in iter(sys.stdin.readline, ""):
            asked = json.loads(line)
            data = digits(asked.pop("clients"))
            more = {"data": "digits tiled", "model": "mlp", "protocol": "cohort", "memory": 4096}
            config = RunConfig.checked({**asked, **more, "eval_every": asked["rounds"]})
            start(Experiment.build(config, None, data), engine, [InTurns()])
    finally:
        engine.close()


def digits(clients: int) -> Any:
    """Digits again and again, 18 rows for each client: as `scale.py` has it, for either version."""
    import numpy as np

    from fedloom.data import Source, federate, load

    once = load("digits")
    rows = np.arange(clients * ROWS) % len(once)
    source = Source.from_arrays(once.x[rows], np.asarray(once.y)[rows], name="digits tiled")
    return federate(source, "iid", clients)


def say(told: Reading) -> None:
    """A line to whoever measures."""
    print(json.dumps(told), flush=True)


def _value(record: Any, name: str) -> Any:
    """Of a record, which once was a dictionary."""
    return record[name] if isinstance(record, dict) else getattr(record, name)


def _cpu_of_family() -> float:
    """CPU seconds of this process and its children so far."""
    children = (
        child
        for task in Path("/proc/self/task").iterdir()
        for child in (task / "children").read_text().split()
    )
    return sum(_cpu(pid) or 0.0 for pid in ("self", *children))


def _cpu(pid: str) -> float | None:
    """CPU seconds of one process; None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


# ------------------------------------------------------------------ both in turns


class Version:
    """A process with one version's source."""

    def __init__(self, tree: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        call = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True, env=env)

    def ask(self, asked: Reading) -> None:
        """Open a run; it waits for its turns."""
        self._write(json.dumps(asked))

    def turn(self) -> Reading:
        """Play a round, or the end of the run."""
        self._write("go")
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a version's process ended with code {self._process.wait()}")
        told: Reading = json.loads(line)
        return told

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


def in_turns(before: Version, now: Version, asked: Reading) -> Reading:
    """One method: the rounds of both versions, taking turns."""
    versions = {"before": before, "now": now}
    rounds: dict[str, list[Reading]] = {"before": [], "now": []}
    digests: dict[str, str] = {}
    for version in versions.values():
        version.ask(asked)
    order = ["before", "now"]
    while len(digests) < 2:
        order.reverse()
        for name in order:
            told = versions[name].turn()
            if "state_sha256" in told:
                digests[name] = told["state_sha256"]
            elif told["kind"] == "train":
                rounds[name].append(told)
    counted = {name: some[1:-1] for name, some in rounds.items()}
    return {
        "method": asked["method"],
        "clients": asked["clients"],
        "rounds_counted": len(counted["now"]),
        "same_bytes": digests["before"] == digests["now"],
        "state_sha256": digests["now"],
        "seconds": _compared(counted, "seconds"),
        "cpu_seconds": _compared(counted, "cpu_seconds"),
        "rounds": counted,
    }


def _compared(rounds: dict[str, list[Reading]], what: str) -> Reading:
    pairs = zip(rounds["before"], rounds["now"], strict=True)
    ratios = [a[what] / b[what] for a, b in pairs]
    medians = {name: statistics.median(r[what] for r in some) for name, some in rounds.items()}
    return {
        **{name: round(value, 4) for name, value in medians.items()},
        "ratio": round(statistics.median(ratios), 2),
        "spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default=BEFORE, help="the earlier commit")
    parser.add_argument("--method", nargs="+", default=list(METHODS))
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--note", default="nothing else", help="what else ran on the machine")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(args, unpacked(args.before, Path(folder)))


def measure(args: argparse.Namespace, earlier: Path) -> None:
    """Every method in both versions; what is there is saved after each."""
    from fedloom.files import write_json
    from fedloom.runs.folder import current_versions

    before, now = Version(earlier), Version(HERE.parent)
    cases: list[Reading] = []
    for method in args.method:
        asked = {"method": method, "clients": args.clients, "rounds": args.rounds}
        cases.append(case := in_turns(before, now, asked))
        print(method, case["seconds"], case["cpu_seconds"], case["same_bytes"], flush=True)
        case["load_average"] = round(os.getloadavg()[2], 2)  # of the last 15 minutes
        write_json(
            args.results,
            {
                "versions": {**current_versions(), "threads": 1, "cpus": os.cpu_count()},
                "before": args.before,
                "workers": WORKERS,
                "to_reach": TO_REACH,
                "also_running": args.note,
                "cases": cases,
            },
        )
    before.close()
    now.close()


if __name__ == "__main__":
    main()
