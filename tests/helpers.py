"""Tiny federations, and the three calls of an engine written out.

Pytest puts this folder on the path, so tests write `from helpers import ...`.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.digest import state_sha256
from fedloom.core.message import Down, Plan, Up
from fedloom.core.net import Net
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.tree import State, Tree
from fedloom.data import FederatedData, Partition, load
from fedloom.data.partition.assignment import ClientRows
from fedloom.record import RoundRecord, Summary
from fedloom.runs.result import Result
from fedloom.runs.watcher import RunView, Watcher

# ------------------------------------------------------------------ data


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


@cache
def digits(*holdings: tuple[tuple[int, ...], int], held_out: int = 6) -> FederatedData:
    """Digits by hand: for each client its classes, dealt in turn, and its number of training rows;
    beside them `held_out` rows each for validation and test."""
    source = load("digits")
    y = np.asarray(source.y)
    unused = {k: list(np.flatnonzero(y == k)) for k in range(source.classes)}

    def deal(classes: tuple[int, ...], n: int) -> np.ndarray:
        return np.array([unused[classes[i % len(classes)]].pop() for i in range(n)], dtype=np.int64)

    rows = tuple(
        ClientRows(*(deal(classes, k) for k in (n, held_out, held_out))) for classes, n in holdings
    )
    return FederatedData(source, Partition(rows, source=source.fingerprint))


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


@dataclass(frozen=True)
class Answer:
    """One client's visit in one round."""

    plan: Plan
    cid: int
    down: Down
    up: Up
    kept: State


@dataclass(frozen=True)
class Played:
    """What a run left, and every message of it."""

    server: State
    clients: dict[int, State]
    answers: list[Answer] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return state_sha256(self.server, self.clients)


def as_is(state: State) -> State:
    """Messages in one process: the very tensors."""
    return state


def play(
    program: Program,
    data: Tables | FederatedData,
    plans: Iterable[Plan],
    start: Played | None = None,
    *,
    participation: float = 1.0,
    carry: Callable[[State], State] = as_is,
    order: Callable[[list[int]], Iterable[int]] = list,
    before_visit: Callable[[Visit], None] = lambda visit: None,
) -> Played:
    """Rounds by `send`, `client` and `merge` and nothing else; `carry` transports every state."""
    server = initial_server(program) if start is None else start.server
    clients = {} if start is None else dict(start.clients)
    answers: list[Answer] = []
    for plan in plans:
        cohort = program.cohort(plan, participation)
        r = Round(program, plan, server, cohort)
        for cid in order(cohort):
            down = Down(plan, carry(send(r, cid).state))
            own = None if cid not in clients else carry(clients[cid])
            visit = Visit(program, cid, data.client(cid), down, own)
            before_visit(visit)
            up, kept = client(visit)
            clients[cid] = kept
            r.add(cid, replace(up, state=carry(up.state)))
            answers.append(Answer(plan, cid, down, up, kept))
        server = merge(r)
    return Played(server, clients, answers)


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


# ------------------------------------------------------------------ comparing


def digest(state: State | None) -> str:
    """The bytes of one state."""
    return state_sha256(state or {}, {})


def same(a: Tree, b: Tree) -> bool:
    """Equal keys, types and bits."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )


def finite(state: State) -> bool:
    """No infinity and no NaN anywhere."""
    return all(bool(torch.isfinite(v).all()) for tree in state.values() for v in tree.values())


def outcome(result: Result) -> tuple[Summary, list[RoundRecord]]:
    """All that a run says, but not how long it took and where it is."""
    records = [replace(r, seconds=0.0, activities={}) for r in result.records]
    return replace(result.summary, seconds=0.0, activities={}, run=None), records


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
from fedloom.cli import main
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


def finish(process: subprocess.Popen[str], timeout: float = 120) -> Done:
    """Wait for a process; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(process.returncode, out, err)


def wait_until(condition: Callable[[], bool], seconds: float = 60, pause: float = 0.005) -> None:
    """Poll; a condition that never holds fails the test."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(pause)
