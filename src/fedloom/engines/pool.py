"""Worker processes on this machine: one thread and one model each, data memory-mapped once.

States cross as packed bytes; the program and the data's description cross once per run. A worker
answers one job at a time, and a job is a pure function, so the number of workers changes nothing
but the time.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedloom import errors
from fedloom.core.data import Federation
from fedloom.core.evaluate import Ask, Score
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.site import CPU
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack
from fedloom.engines import Job
from fedloom.engines.worker import serve
from fedloom.errors import BadInput, FedloomError


class WorkerLost(FedloomError):
    """A worker process ended without an answer."""


class Pool:
    """Persistent worker processes, started on first use and kept from run to run."""

    def __init__(self, workers: int = 2, device: torch.device = CPU) -> None:
        if workers < 1:
            raise BadInput(f"the pool needs at least one worker, got {workers}")
        self.workers, self.device = workers, device
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._busy: dict[Connection, int] = {}
        """Who works for which client; not empty between two rounds only after an error."""

    def open(self, program: Program, data: Federation) -> None:
        if self._busy:
            self.close()  # or answers of the run that broke down would be taken for this one's
        if not self._processes:
            self._start()
        described = data.shared() if hasattr(data, "shared") else data
        for link in self._processes:
            with self._on_the_line(link, "getting ready"):
                link.send((program, described, str(self.device)))
        for link in self._processes:
            self._hear(link, "getting ready")

    def clients(self, jobs: Iterable[Job], ask: Ask | None) -> Iterator[tuple[int, Up, State]]:
        for cid, head, (up, kept) in self._ask_all(jobs, "client", ask, states=2):
            yield cid, Up(up, head["n"], head["metrics"]), kept

    def evaluate(self, jobs: Iterable[Job], ask: Ask) -> Iterator[tuple[int, dict[str, Score]]]:
        for cid, head, _ in self._ask_all(jobs, "evaluate", ask, states=0):
            yield cid, head["scores"]

    def close(self) -> None:
        for link, process in self._processes.items():
            if link in self._busy:
                process.terminate()  # nobody waits for its answer
            link.close()  # a worker whose link closes ends by itself
        for process in self._processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()
                process.join(timeout=10)
        self._processes, self._busy = {}, {}

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            with _deaf_to_ctrl_c():
                process.start()
            theirs.close()
            self._processes[ours] = process

    def _ask_all(
        self, jobs: Iterable[Job], task: str, ask: Ask | None, states: int
    ) -> Iterator[tuple[int, dict[str, Any], list[State]]]:
        queue, idle, busy = iter(jobs), list(self._processes), self._busy
        while True:
            while idle and (job := next(queue, None)) is not None:
                link = idle.pop()
                busy[link] = job.cid
                with self._on_the_line(link, f"taking client {job.cid}"):
                    _post(link, job, task, ask)
            if not busy:
                return
            for link in [link for link in wait(list(busy)) if isinstance(link, Connection)]:
                head, received = self._hear(link, f"client {busy[link]}", states)
                cid = busy.pop(link)
                idle.append(link)
                yield cid, head, received

    def _hear(
        self, link: Connection, doing: str, states: int = 0
    ) -> tuple[dict[str, Any], list[State]]:
        with self._on_the_line(link, doing):
            head = link.recv()
            if "error" in head:
                raise _rebuilt(head)
            return head, [unpack(link.recv_bytes()) for _ in range(states)]

    @contextmanager
    def _on_the_line(self, link: Connection, doing: str) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError):
            process = self._processes[link]
            process.join(timeout=5)
            raise WorkerLost(
                f"a worker process ended (exit code {process.exitcode}) at {doing}; check memory,"
                " in a script keep the call under `if __name__ == '__main__':`, then resume"
            ) from None


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A child inherits what is ignored: Ctrl-C is this process's to handle, also while the child
    still imports."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signals
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _post(link: Connection, job: Job, task: str, ask: Ask | None) -> None:
    plan = asdict(job.down.plan)
    asked = None if ask is None else asdict(ask)
    first = job.own is None
    link.send({"task": task, "cid": job.cid, "plan": plan, "ask": asked, "first": first})
    link.send_bytes(pack(job.down.state))
    link.send_bytes(pack(job.own or {}))


def _rebuilt(head: dict[str, Any]) -> Exception:
    """The worker's error: the user's errors keep their class, others carry the trace."""
    kind = getattr(errors, head["error"], None)
    if isinstance(kind, type) and issubclass(kind, FedloomError):
        error = FedloomError.__new__(kind)
        error.args = (head["message"],)
        return error
    return RuntimeError(f"{head['error']} in a worker process: {head['message']}\n{head['trace']}")
