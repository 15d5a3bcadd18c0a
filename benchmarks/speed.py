"""fedloom against a bare loop and against its peers, side by side: `make bench`.

    python benchmarks/speed.py                       everything (about half an hour)
    python benchmarks/speed.py train fedpac          some of it
    python benchmarks/speed.py --repeats 1 pfl       quickly

Contestants take turns, each in processes of its own, with one thread per process and two processes;
a contestant's first round, in which caches fill, and fedloom's last, which is always evaluated, do
not count. The ratio of a repeat compares two neighbours in time, because the machine drifts; what
is reported is the median ratio with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import page
import peers
from export import export

from fedloom.data import load
from fedloom.files import write_json
from fedloom.runs.config import RunConfig
from fedloom.runs.folder import current_versions

HERE = Path(__file__).parent
CONTESTANTS = HERE / "contestants"
RESULTS = HERE / "results" / "speed.json"

FEDAVG = {
    "method": "fedavg",
    "data": "fashion_mnist",
    "partition": "dirichlet(alpha=0.1)",
    "clients": 20,
    "model": "cnn4",
    "batch_size": 10,
    "lr": 0.05,
    "rounds": 3,
    "engine": "pool",
    "protocol": "dbe",  # the global model as received, for all clients
}
FEDPAC = {
    "method": "fedpac",
    "data": "fashion_mnist",
    "partition": "dominant(uniform=0.2, size=450)",
    "split": "fedpac(test_size=450, sharing=true)",
    "clients": 100,
    "participation": 0.3,
    "model": "cnn_fedpac",
    "batch_size": 50,
    "epochs": 5,
    "lr": 0.01,
    "rounds": 3,
    "engine": "pool",
    "protocol": "dbe",
}


TILED = "digits_tiled.npz"
"""In the scratch folder: digits again and again, for many clients."""
SMALL = {
    "method": "fedavg",
    "data": TILED,
    "partition": "iid",
    "clients": 1000,
    "model": "mlp",
    "batch_size": 10,
    "lr": 0.1,
    "rounds": 4,
    "engine": "pool",
    "protocol": "cohort",
}
"""18 rows each, 13 of them to train on."""
USERS = {
    "method": "fedavg",
    "data": "fashion_mnist",
    "partition": "iid",
    "clients": 200,
    "split": "capped(train=100, share=0.5)",
    "model": "cnn4",
    "batch_size": 10,
    "lr": 0.05,
    "rounds": 4,
    "engine": "pool",
    "protocol": "dbe",
}
"""As EMNIST's users are: 100 rows each."""


@dataclass(frozen=True)
class Duel:
    """fedloom against one other, on one workload."""

    title: str
    settings: dict
    rival: str
    """Script in `contestants/`."""
    least: float
    """The ratio to reach: the rival's seconds over fedloom's."""
    evaluate: bool = False
    peer: str = ""
    """Environment the rival runs in; empty: fedloom's own."""
    plain: bool = False
    """The peer as its tutorial writes it, without the layout and the data handling we gave it?"""
    same_bytes: bool = False
    """Must both end with the same weights?"""


DUELS = {
    "train": Duel("FedAvg against a bare loop", FEDAVG, "bare.py", 0.95, same_bytes=True),
    "evaluate": Duel(
        "the same, all clients tested every round", FEDAVG, "bare.py", 0.95, evaluate=True
    ),
    "fedpac": Duel("FedPAC against its bare local work", FEDPAC, "bare_fedpac.py", 0.93),
    "pfl": Duel("FedAvg against pfl, channels last too", FEDAVG, "pfl_peer.py", 1.5, peer="pfl"),
    "pfl_plain": Duel(
        "FedAvg against pfl as it comes", FEDAVG, "pfl_peer.py", 1.5, peer="pfl", plain=True
    ),
    "flower": Duel(
        "FedAvg against Flower around the bare loop", FEDAVG, "flower_peer.py", 3.0, peer="flower"
    ),
    "flower_plain": Duel(
        "FedAvg against a plain Flower app",
        FEDAVG,
        "flower_peer.py",
        3.0,
        peer="flower",
        plain=True,
    ),
    "small_pfl": Duel("1,000 small clients against pfl", SMALL, "pfl_peer.py", 3.0, peer="pfl"),
    "small_flower": Duel(
        "1,000 small clients against Flower around the bare loop",
        SMALL,
        "flower_peer.py",
        20.0,
        peer="flower",
    ),
    "users": Duel("200 users against a bare loop", USERS, "bare.py", 0.95, same_bytes=True),
    "users_pfl": Duel("200 users against pfl", USERS, "pfl_peer.py", 1.5, peer="pfl"),
    "users_flower": Duel(
        "200 users against Flower around the bare loop", USERS, "flower_peer.py", 3.0, peer="flower"
    ),
    "users_pfllib": Duel(
        "200 users against PFLlib's loop", USERS, "pfllib_peer.py", 2.0, peer="pfllib"
    ),
}


def run(command: list[str], variables: dict[str, str]) -> dict:
    """One contestant to its end; its last line."""
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compete(name: str, duel: Duel, repeats: int, scratch: Path) -> dict:
    """All repeats of a duel."""
    folder = scratch / name
    settings = duel.settings
    if settings["data"] == TILED:
        settings = {**settings, "data": str(tiled(scratch, settings["clients"]))}
    export(RunConfig.checked(settings), folder)
    (folder / "config.json").write_text(json.dumps(settings))
    arguments = [str(folder), *(["--evaluate"] if duel.evaluate else [])]
    ours = [sys.executable, str(CONTESTANTS / "ours.py"), *arguments]
    rival, variables = [sys.executable, str(CONTESTANTS / duel.rival), *arguments], {}
    if duel.peer:
        plain = ["--plain"] if duel.plain else []
        rival = peers.command(duel.peer, CONTESTANTS / duel.rival, [*arguments, *plain])
        variables = peers.environment(duel.peer)
    readings = []
    for i in range(repeats):
        pair = {"fedloom": (ours, {}), "rival": (rival, variables)}
        order = list(pair) if i % 2 == 0 else list(pair)[::-1]
        found = {who: run(*pair[who]) for who in order}
        readings.append({who: found[who] for who in pair})
        print(f"{name} {i + 1}/{repeats}:", {w: round(_round(f), 2) for w, f in found.items()})
    return _result(duel, readings)


def tiled(scratch: Path, clients: int) -> Path:
    """Digits again and again, 18 rows for each client, as a file."""
    scratch.mkdir(parents=True, exist_ok=True)
    once, rows = load("digits"), np.arange(18 * clients)
    rows %= len(once)
    np.savez(scratch / TILED, x=once.x[rows], y=np.asarray(once.y)[rows])
    return (scratch / TILED).resolve()


def _round(found: dict) -> float:
    return median(found["seconds"][1:-1])


def _result(duel: Duel, readings: list[dict]) -> dict:
    ratios = [_round(r["rival"]) / _round(r["fedloom"]) for r in readings]
    digests = {found["sha256"] for r in readings for found in r.values()}
    return {
        "title": duel.title,
        "settings": duel.settings,
        "evaluate": duel.evaluate,
        "at_least": duel.least,
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "fedloom_seconds": round(median(_round(r["fedloom"]) for r in readings), 3),
        "rival_seconds": round(median(_round(r["rival"]) for r in readings), 3),
        "reached": median(ratios) >= duel.least,
        **({"same_bytes": len(digests) == 1} if duel.same_bytes else {}),
        "readings": readings,
    }


def start_of_help(repeats: int) -> dict:
    """Seconds of `fedloom --help`, from nothing to the prompt."""
    command = [str(Path(sys.executable).with_name("fedloom")), "--help"]
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - begun)
    middle = median(seconds)
    return {"seconds": round(middle, 3), "readings": seconds, "reached": middle < 0.5}


def main() -> None:
    """Measure what was asked for, keep what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="what", help=f"{', '.join(DUELS)} or help")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--scratch", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    if unknown := sorted(set(args.what) - {*DUELS, "help"}):
        parser.error(f"there is no {unknown[0]!r}; choose from {', '.join(DUELS)} and help")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"duels": {}}
    wanted = args.what or [*DUELS, "help"]
    for name in wanted:
        if name == "help":
            results["help"] = start_of_help(max(3, args.repeats))
        else:
            results["duels"][name] = compete(name, DUELS[name], args.repeats, args.scratch)
        results["duels"] = {k: results["duels"][k] for k in DUELS if k in results["duels"]}
        results["versions"] = current_versions()
        results["cores"] = os.cpu_count()
        write_json(RESULTS, results)
    print(page.speed())


if __name__ == "__main__":
    main()
