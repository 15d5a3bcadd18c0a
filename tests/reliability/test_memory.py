"""Memory: what a run holds on to from round to round, and what happens when there is none left."""

from __future__ import annotations

import gc
import resource
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from test_resume import assert_same_run

import fedloom
from fedloom.record import RoundRecord
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.watcher import RunView, Watcher
from helpers import finish, start_fedloom

TINY: dict[str, Any] = {
    "clients": 4,
    "participation": 0.5,
    "partition": "iid",
    "model": "mlp(hidden=[4])",
    "steps": 1,
    "eval_every": 1000,
    "checkpoint_every": 20,
    "progress": False,
}


class Held(Watcher):
    """What Python holds after some rounds, with and without the run's records."""

    def __init__(self, *rounds: int) -> None:
        self.rounds = rounds
        self.records: dict[int, int] = {}
        """Round -> bytes of the records since the one before."""
        self.rest: dict[int, int] = {}

    def step(self, run: RunView, record: RoundRecord) -> None:
        if record.round in self.rounds:
            with_records = self._bytes()
            list.clear(run.records)  # type: ignore[arg-type]
            self.rest[record.round] = self._bytes()
            self.records[record.round] = with_records - self.rest[record.round]

    @staticmethod
    def _bytes() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


def test_only_the_records_of_a_run_grow_with_its_rounds(tmp_path: Path) -> None:
    """They are what the result is made of, some 1,500 bytes each. The rest is caches of libraries
    that fill up; a dictionary that somebody keeps of every round would be 100 bytes and more."""
    held = Held(40, 140, 240)
    tracemalloc.start()
    try:
        fedloom.run(
            "fedper + control_variates",
            **TINY,
            rounds=241,
            out=str(tmp_path / "run"),
            watchers=[held],
        )
    finally:
        tracemalloc.stop()
    assert 500 < held.records[240] / 100 < 2500
    # What comes and goes between two looks is up to 200 bytes a round; a leak of a round's scores,
    # lines or states would be more than its record.
    assert (held.rest[240] - held.rest[140]) / 100 < 500


HUNGRY = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

import fedloom as fl


@fl.register
@dataclass(frozen=True)
class Hungry(fl.Term):
    """Wants 2.5 GB in round 3, and does nothing with it."""

    name: ClassVar[str] = "hungry"
    reveals: ClassVar[tuple[str, ...]] = ()

    def loss(self, b, s):
        if s.plan.t == 3:
            torch.empty(5 * 2**29, dtype=torch.uint8)
        return 0.0
'''
LIMIT_BYTES = 3 * 2**30
"""Of a process that has a gigabyte when torch is imported."""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of memory is Linux's")
def test_memory_that_the_system_refuses_is_one_sentence_and_a_resume_away(tmp_path: Path) -> None:
    """An allocation of the third round fails; what is done is saved, though checkpoints are far
    apart, and with more memory the run ends as one that always had it."""
    file, alone, out = tmp_path / "hungry.py", tmp_path / "alone", tmp_path / "run"
    file.write_text(HUNGRY)
    flags = ["--import", file, "method=fedper + hungry", "data=digits", "partition=iid"]
    flags += ["clients=3", "model=mlp(hidden=[4])", "steps=1", "rounds=5", "checkpoint_every=100"]
    assert finish(start_fedloom("run", *flags, "--out", alone, "-q")).code == 0
    process = start_fedloom("run", *flags, "--out", out, "-q")
    resource.prlimit(process.pid, resource.RLIMIT_AS, (LIMIT_BYTES, resource.RLIM_INFINITY))
    done = finish(process)
    assert done.code == 1
    (sentence,) = done.err.splitlines()
    assert "out of memory" in sentence
    assert sentence.endswith(f"to go on: fedloom resume {out}")
    assert Checkpoints(out / "checkpoints").steps() == [2]
    assert finish(start_fedloom("resume", out, "-q")).code == 0
    assert_same_run(out, alone)
