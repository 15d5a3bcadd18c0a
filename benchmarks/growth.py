"""What a run, and a deployed site's node, hold on to in memory from round to round:
`python benchmarks/growth.py`.

The run of the soak, left alone, under `tracemalloc`. At some rounds its records are taken away:
what that frees are the records since the round before, and what stays is all else. Of a node what
Flower keeps of every message: its task, outside of Python's heap, so the process is looked at.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import psutil
from soak import SETTINGS

import fedloom as fl
from fedloom.files import write_json
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "growth.json"
ROUNDS = (100, 200, 300)
TASKS = 10_000


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


def bytes_of_a_task() -> int:
    """By which a process grows when a SuperNode's state is given a task, and is told that it is
    done."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.constant import TaskType
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.nodestate import NodeStateFactory

    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()

    def do_tasks(number: int) -> None:
        for _ in range(number):
            task = state.create_task(TaskType.CLIENT_APP, run_id=2**62, fab_hash="0" * 64)
            assert task is not None
            state.claim_task(task)
            state.activate_task(task)
            assert state.finish_task(task, SubStatus.COMPLETED, "")

    do_tasks(100)  # what the first ones import or set up is no growth
    before = psutil.Process().memory_info().rss
    do_tasks(TASKS)
    return round((psutil.Process().memory_info().rss - before) / TASKS)


def main() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as elsewhere:
        task = elsewhere.apply(bytes_of_a_task)
    held = Held()
    with tempfile.TemporaryDirectory() as scratch:
        tracemalloc.start()
        fl.run(
            **SETTINGS, rounds=ROUNDS[-1] + 1, out=f"{scratch}/run", watchers=[held], progress=False
        )
    found: dict[str, object] = {
        f"rounds {first} to {last}, bytes a round": {
            "records": round((held.with_records[i] - held.without[i]) / (last - first)),
            "all else": round((held.without[i] - held.without[i - 1]) / (last - first)),
        }
        for i, (first, last) in enumerate(pairwise(ROUNDS), start=1)
    }
    found["a task that a node has done, bytes"] = task
    print(found)
    write_json(RESULTS, {**found, "versions": current_versions()})


if __name__ == "__main__":
    main()
