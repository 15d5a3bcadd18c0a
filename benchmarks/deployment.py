"""What a round costs over Flower: `python benchmarks/deployment.py`.

Real deployments on loopback with TLS and node authentication: a SuperLink, SuperNodes with unlike
parts of the digits, and a run. A round's seconds are the server's; the first, in which caches are
cold, does not count, and the median of the others is reported. Local work is a fraction of a second
everywhere, so what is left is the engine: processes that start, polling, coding, transport. The
second model is as large as a ResNet-18 (11 million numbers). Memory is the peak of each process's
proportional set size, by what the process is. Beside them stands the in-process grid, in which the
same messages are encoded and decoded without a network. All of it goes to
`benchmarks/results/deployment.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from fedloom.deploy.processes.federation import DeployedFederation
from fedloom.deploy.processes.rehearsal import approved_at_sites, digits_project
from fedloom.launch.start import run
from fedloom.record import RoundRecord
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_records

RESULTS = Path(__file__).parent / "results" / "deployment.json"
MODELS = {"small": "mlp(norm=batch)", "11 million numbers": "mlp(hidden=[3290, 3290], norm=batch)"}
ROLES = {
    "fedloom.deploy.guard": "SuperLink",
    "fedloom.deploy.gate": "SuperNode",
    "flower-superexec": "SuperExec",
    "flwr-clientapp": "client app",
    "flwr-serverapp": "server app",
}
"""By a word of the command line. A site's SuperExec is fedloom's, and its client apps are forks of
a process of which they keep the command line."""
TEMPLATE = "client app, template"


class Memory(threading.Thread):
    """Looks at all processes of a federation while it works."""

    def __init__(self, federation: DeployedFederation) -> None:
        super().__init__(daemon=True)
        self.federation, self.stop = federation, threading.Event()
        self.peaks: dict[str, dict[int, float]] = defaultdict(dict)

    def run(self) -> None:
        while not self.stop.wait(1.0):
            for process in self.federation.processes():
                with suppress(psutil.Error):
                    peaks = self.peaks[_role(process)]
                    peaks[process.pid] = max(peaks.get(process.pid, 0.0), _megabytes(process))

    def by_role(self) -> dict[str, float]:
        """The median over a role's processes of each one's peak."""
        return {
            role: round(statistics.median(peaks.values()), 1)
            for role, peaks in sorted(self.peaks.items())
        }


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    role = next((role for word, role in ROLES.items() if word in map(_name, words)), "other")
    if role == "client app" and "--token" not in words:
        # The template and its forks have one command line; a fork's parent is the template.
        parent = process.parent()
        forked = parent is not None and parent.cmdline() == words
        return role if forked else TEMPLATE
    return role


def _name(word: str) -> str:
    """A command without its folder."""
    return word.rpartition("/")[2]


def _megabytes(process: psutil.Process) -> float:
    """Proportional: memory that several processes share is divided among them."""
    return float(process.memory_full_info().pss) / 2**20


def deployed(nodes: int, model: str, rounds: int) -> dict[str, Any]:
    """One deployment."""
    with tempfile.TemporaryDirectory(prefix="fedloom-bench-") as scratch:
        settings = {"method": "fedper", "rounds": rounds, "model": model}
        project = digits_project(Path(scratch) / "project", nodes, True, settings)
        for _ in approved_at_sites(project, by="benchmark"):
            pass
        with DeployedFederation(project) as federation:
            begun = time.perf_counter()
            federation.start()
            ready = time.perf_counter() - begun
            memory = Memory(federation)
            memory.start()
            submitted = federation.submit()
            submitted.wait(1800)
            memory.stop.set()
            memory.join()
        records = read_records(RunPaths(submitted.out / "run").metrics, RoundRecord)
    seconds = [r.seconds for r in records]
    return {
        "nodes": nodes,
        "model": model,
        "megabytes_up_a_client": records[-1].bytes_up / nodes / 1e6,
        "start_seconds": ready,
        "seconds_per_round": statistics.median(seconds[1:]),
        "all_seconds": seconds,
        "memory_MB": memory.by_role(),
    }


def in_process(nodes: int, model: str, rounds: int) -> dict[str, Any]:
    """The same messages without a network, beside the reference engine."""
    seconds = {}
    for engine in ("inline", "flower"):
        result = run(
            "fedper",
            clients=nodes,
            partition="dirichlet(alpha=0.3)",
            rounds=rounds,
            model=model,
            protocol="cohort",
            engine=engine,
        )
        seconds[engine] = statistics.median(r.seconds for r in result.records[1:])
    return {"nodes": nodes, "model": model, **{f"{k}_seconds": v for k, v in seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    args = parser.parse_args()
    found: dict[str, Any] = {
        "versions": {name: version(name) for name in ("flwr", "torch", "fedloom")},
        "deployed": [],
        "in_process": [],
    }
    for model in (MODELS[name] for name in args.models):
        for nodes in args.nodes:
            for name, measure in (("in_process", in_process), ("deployed", deployed)):
                found[name].append(measure(nodes, model, args.rounds))
                print(json.dumps(found[name][-1]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
