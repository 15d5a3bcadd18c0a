"""The other side of the pool: one process that answers jobs until its link closes."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedloom.core.data import Federation, data_of
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State
from fedloom.engines import Job
from fedloom.engines.bundle import opened
from fedloom.engines.freight import receive, send
from fedloom.engines.vectorized import Blocks


def serve(link: Connection) -> None:
    """Answer until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    torch.set_num_threads(1)
    worker: _Worker | None = None
    while True:
        try:
            with timed("waiting"):
                link.poll(None)
            with timed("transfer"):
                head, states = receive(link)
            if isinstance(head, tuple):
                worker = _Worker(*head)
                timed.drain()  # what it took to start
                reply(link, [])
            elif worker is not None:
                reply(link, *worker.answers(head, states))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as e:
            trace = traceback.format_exc()
            send(link, {"error": type(e).__name__, "message": str(e), "trace": trace})


def reply(link: Connection, answers: list[Any], states: Sequence[State] = ()) -> None:
    """Answers, the seconds they took, and their states."""
    with timed("transfer"):
        send(link, {"answers": answers, "seconds": timed.drain()}, states)


class _Worker:
    def __init__(self, program: Program, data: Federation, device: str) -> None:
        self.program, self.data, self.device = program, data, torch.device(device)
        self.blocks = Blocks()

    def answers(self, head: dict[str, Any], states: list[State]) -> tuple[list[Any], list[State]]:
        """What is asked in a message, and the states that go with it."""
        jobs = opened(head, states)
        visits = [self._visit(job) for job in jobs]
        ask = None if head["ask"] is None else Ask(**head["ask"])
        if head["task"] == "evaluate":
            assert ask is not None
            return [(visit.cid, evaluate(visit, ask)) for visit in visits], []
        found = self.blocks.answer(visits, ask)
        told = [(v.cid, up.n, dict(up.metrics)) for v, (up, _) in zip(visits, found, strict=True)]
        return told, [state for up, kept in found for state in (up.state, kept)]

    def _visit(self, job: Job) -> Visit:
        data = data_of(self.data, job.cid)
        return Visit(self.program, job.cid, data, job.down, job.own, self.device)
