"""What a run holds on to in memory from round to round: `python benchmarks/growth.py`.

The run of the soak, left alone, under `tracemalloc`. At two rounds its records are taken away: what
that frees are the records since the first of them, and what stays is all else.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from pathlib import Path

from soak import SETTINGS

import fedloom as fl
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "growth.json"
FIRST, SECOND = 200, 600


class Held(fl.Watcher):
    """Bytes after two rounds, with and without records."""

    def __init__(self) -> None:
        self.with_records: list[int] = []
        self.without: list[int] = []

    def step(self, run: fl.RunView, record: fl.RoundRecord) -> None:
        if record.round in (FIRST, SECOND):
            self.with_records.append(traced())
            run.records.clear()
            self.without.append(traced())


def traced() -> int:
    """Bytes that Python holds now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main() -> None:
    held, rounds = Held(), SECOND - FIRST
    with tempfile.TemporaryDirectory() as scratch:
        tracemalloc.start()
        fl.run(
            **SETTINGS, rounds=SECOND + 1, out=f"{scratch}/run", watchers=[held], progress=False
        )
    found = {
        "rounds": [FIRST, SECOND],
        "bytes a round": {
            "records": round((held.with_records[1] - held.without[1]) / rounds),
            "all else": round((held.without[1] - held.without[0]) / rounds),
        },
        "versions": current_versions(),
    }
    print(found["bytes a round"])
    write_json(RESULTS, found)


if __name__ == "__main__":
    main()
