"""Fuzzing that is led by the code it reaches, by atheris; beside the hundred thousand of `fuzz.py`.

    pip install atheris                    where there is a build: Linux, macOS
    python benchmarks/fuzz_guided.py expressions --seconds 600

Targets, damage and watch are those of `tests/reliability/fuzzing.py`. Where `fuzz.py` draws at
random what is damaged and how, here bytes say so, and atheris changes those that led to code which
no earlier ones had reached. Only the lines of `fedloom` count for that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import atheris
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "reliability"))
sys.dont_write_bytecode = True

with atheris.instrument_imports(include=["fedloom"]):
    from fuzzing import TARGETS, FromBytes, attempt, workshop

from fedloom.files import write_json  # noqa: E402
from fedloom.runs.folder import current_versions  # noqa: E402

RESULTS = HERE / "results" / "fuzz_guided.json"
MOST_SHOWN = 20
"""Lost inputs of a target that are written out."""
FIRST = 20
"""Inputs that are tried before, to import what fedloom imports when it is used."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=list(TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"tried": 0, "refused": 0, "lost": 0, "shown": []}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch, workshop(Path(scratch)) as folder:
        with atheris.instrument_imports(include=["fedloom"]):
            make = TARGETS[args.target][0](folder)
            for number in range(FIRST):
                attempt(*make(FromBytes(bytes([number]) * 100)), folder)

        end = time.monotonic() + args.seconds

        def try_one(data: bytes) -> None:
            call, shown = make(FromBytes(data))
            found["tried"] += 1
            try:
                found["refused"] += not attempt(call, shown, folder)
            except AssertionError as e:
                found["lost"] += 1
                if len(found["shown"]) < MOST_SHOWN:
                    found["shown"].append({"bytes": data.hex(), "why": str(e)[:1000]})
                print("LOST", str(e)[:300], flush=True)
            if time.monotonic() > end:
                save(args.target, found, args.seconds)
                os._exit(0)

        if (child := os.fork()) == 0:  # `Fuzz` does not return, nor leave the process as others do
            atheris.Setup([sys.argv[0], "-verbosity=0"], try_one)
            atheris.Fuzz()
        _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("the fuzzer ended before its time; see above")


def save(target: str, found: dict[str, Any], seconds: int) -> None:
    """Add a target to the file."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
    results["targets"][target] = {**found, "seconds": seconds}
    write_json(RESULTS, {**results, "versions": current_versions()})
    print(target, {k: v for k, v in found.items() if k != "shown"}, flush=True)


if __name__ == "__main__":
    main()
