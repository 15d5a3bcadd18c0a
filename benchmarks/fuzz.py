"""A hundred thousand inputs of strangers: what was tried, what held, what was lost.

    python benchmarks/fuzz.py                       what is not in results/fuzz.json yet
    python benchmarks/fuzz.py --only images --inputs 1000000

The targets, the damage and the watch over what happens are those of `tests/reliability/fuzzing.py`,
of which CI tries a few. An input is lost where it makes a traceback, hangs, executes something, or
writes elsewhere than in its folder; each that is lost is in the results, and the others go on.
Inputs are drawn from `--seed` and the target's name, in batches, so that a run that was interrupted
goes on, and every input can be made again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "reliability"))
sys.dont_write_bytecode = True

from fuzzing import TARGETS, attempt, workshop  # noqa: E402

from fedloom.files import write_json  # noqa: E402
from fedloom.runs.folder import current_versions  # noqa: E402

RESULTS = HERE / "results" / "fuzz.json"
BATCH = 500
MOST_SHOWN = 20
"""Lost inputs of a target that are written out."""


def tried(name: str, batch: int, size: int, seed: int, found: dict[str, Any]) -> None:
    """Try some inputs of a target, and count."""
    rng = random.Random(f"{seed} {name} {batch}")
    begun = time.process_time()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch, workshop(Path(scratch)) as folder:
        make = TARGETS[name][0](folder)
        for number in range(size):
            call, shown = make(rng)
            try:
                found["refused"] += not attempt(call, shown, folder)
            except AssertionError as e:
                found["lost"] += 1
                if len(found["shown"]) < MOST_SHOWN:
                    found["shown"].append({"batch": batch, "number": number, "why": str(e)[:1000]})
                print("LOST", name, batch, number, str(e)[:300], flush=True)
            found["tried"] += 1
    found["cpu_seconds"] = round(found["cpu_seconds"] + time.process_time() - begun, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--only", choices=list(TARGETS), help="one target, given all of them")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
    shares = {args.only: 1.0} if args.only else {n: share for n, (_, share) in TARGETS.items()}
    empty = {"tried": 0, "refused": 0, "lost": 0, "cpu_seconds": 0.0}
    for name, share in shares.items():
        found = results["targets"].setdefault(name, {**empty, "shown": []})
        while (left := round(args.inputs * share) - found["tried"]) > 0:
            tried(name, found["tried"] // BATCH, min(BATCH, left), args.seed, found)
            results |= {"seed": args.seed, "versions": current_versions()}
            write_json(RESULTS, results)
            print(name, found["tried"], found["refused"], found["lost"], flush=True)


if __name__ == "__main__":
    main()
