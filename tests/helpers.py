"""Tiny federations, and what tests share with `fedloom.testing`.

Pytest puts this folder on the path, so tests write `from helpers import ...`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fedloom.core.data import ClientData
from fedloom.core.net import Net
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.data import FederatedData
from fedloom.record import RoundRecord
from fedloom.runs.watcher import RunView, Watcher
from fedloom.testing.checks import outcome
from fedloom.testing.federations import digits
from fedloom.testing.rounds import Answer, Played, digest, finite, play, same

__all__ = [
    "LIMIT",
    "Answer",
    "Done",
    "Played",
    "StopAt",
    "Table",
    "Tables",
    "digest",
    "digits",
    "fedloom",
    "finish",
    "finite",
    "mlp",
    "outcome",
    "play",
    "run",
    "same",
    "start_fedloom",
    "table",
    "tables",
    "wait_until",
    "with_shared_tests",
]

LIMIT = 600.0
"""Seconds within which whatever a test waits for has to happen, however busy the machine is."""

# ------------------------------------------------------------------ data


def with_shared_tests(data: FederatedData) -> FederatedData:
    """The same with two test sets of nobody: 20 rows of classes 0 to 2, 30 of classes 4 to 9."""
    y = np.asarray(data.source.y)
    shared = {"low": np.flatnonzero(y < 3)[-20:], "high": np.flatnonzero(y > 3)[-30:]}
    return replace(data, partition=replace(data.partition, shared=shared))


@dataclass(frozen=True)
class Table:
    """A split held in memory."""

    rows: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def augmented(self) -> bool:
        return False

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        return self.rows[idx]


@dataclass(frozen=True)
class Tables:
    """A federation held in memory."""

    members: Sequence[ClientData]

    def __len__(self) -> int:
        return len(self.members)

    def client(self, cid: int) -> ClientData:
        return self.members[cid]


def table(n: int, width: int = 4, classes: int = 3, key: int = 0) -> Table:
    """Rows whose class is their largest value among the first `classes`."""
    rows = torch.randn(n, width, generator=generator("table", key, n))
    return Table(rows, rows[:, :classes].argmax(1))


def tables(*sizes: int, width: int = 4, classes: int = 3) -> Tables:
    """One client per size, each with six test rows."""
    return Tables(
        [
            ClientData(
                table(n, width, classes, key=i), None, table(6, width, classes, key=-1 - i), classes
            )
            for i, n in enumerate(sizes)
        ]
    )


# ------------------------------------------------------------------ nets


def mlp(
    width: int = 4, hidden: int = 5, classes: int = 3, norm: bool = False, dropout: float = 0
) -> Net:
    """A small seeded net with stages body and head."""
    with rng_scope("mlp"):
        layers: list[nn.Module] = [nn.Linear(width, hidden)]
        layers += [nn.BatchNorm1d(hidden)] if norm else []
        layers += [nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        return Net((width,), body=nn.Sequential(*layers), head=nn.Linear(hidden, classes))


# ------------------------------------------------------------------ a run


def run(program: Program, data: Tables | FederatedData, rounds: int, **how: object) -> Played:
    """`play` over the program's whole schedule."""
    return play(program, data, program.schedule(rounds), **how)  # type: ignore[arg-type]


class StopAt(Watcher):
    """A watcher that presses Ctrl-C after so many rounds."""

    def __init__(self, done: int) -> None:
        self.left = done

    def step(self, run: RunView, record: RoundRecord) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


# ------------------------------------------------------------------ the command line


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The last line of standard output, which --json makes an object."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def fedloom(*args: str | Path) -> Done:
    """The command line in this process."""
    from fedloom.cli import main

    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["fedloom", *map(str, args)]
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as e:
        code = e.code
    finally:
        sys.argv = argv
    return Done(int(code or 0), out.getvalue(), err.getvalue())


# Tests that run in the background ignore Ctrl-C, which a child would inherit.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedloom.__main__ import main
main()
"""


def start_fedloom(*args: str | Path) -> subprocess.Popen[str]:
    """The command line in a process (and process group) of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[str], timeout: float = LIMIT) -> Done:
    """Wait for a process; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(process.returncode, out, err)


def wait_until(condition: Callable[[], bool], seconds: float = LIMIT, pause: float = 0.005) -> None:
    """Poll; a condition that never holds fails the test."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(pause)
