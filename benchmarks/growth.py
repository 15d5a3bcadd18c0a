"""What a run holds on to in memory from round to round: `python benchmarks/growth.py`.

The run of the soak, left alone, under `tracemalloc`. At some rounds its records are taken away:
what that frees are the records since the round before, and what stays is all else.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

from soak import SETTINGS

import fedloom as fl
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "growth.json"
ROUNDS = (100, 200, 300)


class Held(fl.Watcher):
    """Bytes after these rounds, with and without records."""

    def __init__(self) -> None:
        self.with_records: list[int] = []
        self.without: list[int] = []

    def step(self, run: fl.RunView, record: fl.RoundRecord) -> None:
        if record.round in ROUNDS:
            self.with_records.append(traced())
            run.records.clear()
            self.without.append(traced())


def traced() -> int:
    """Bytes that Python holds now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    held = Held()
    with tempfile.TemporaryDirectory() as scratch:
        tracemalloc.start()
        fl.run(
            **SETTINGS, rounds=ROUNDS[-1] + 1, out=f"{scratch}/run", watchers=[held], progress=False
        )
    found = {
        f"rounds {first} to {last}, bytes a round": {
            "records": round((held.with_records[i] - held.without[i]) / (last - first)),
            "all else": round((held.without[i] - held.without[i - 1]) / (last - first)),
        }
        for i, (first, last) in enumerate(pairwise(ROUNDS), start=1)
    }
    print(found)
    write_json(RESULTS, {**found, "versions": current_versions()})


if __name__ == "__main__":
    main()
