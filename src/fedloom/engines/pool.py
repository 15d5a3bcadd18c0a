"""Worker processes on this machine: one thread and one model each, data memory-mapped once.

Small clients share a message, and a worker computes equal ones of a message in blocks (`blocks`).
The program and the data's description are sent once per run. A worker answers one message at a
time, and a job is a pure function, so the number of workers changes nothing but the time.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fedloom.core.data import Federation, size_of
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.site import CPU
from fedloom.core.stopwatch import Stopwatch, timed
from fedloom.core.tree import State
from fedloom.engines import Engine, JobOf
from fedloom.engines.bundle import Bundle, named, portions
from fedloom.engines.pipe_codec import receive, send
from fedloom.engines.worker import read_head, serve
from fedloom.errors import BadInput, WorkerLost
from fedloom.extensions import loaded
from fedloom.signals import ignoring_ctrl_c


class Pool(Engine):
    """Persistent worker processes, started on first use and kept from run to run."""

    def __init__(self, workers: int = 2, device: torch.device = CPU) -> None:
        if workers < 1:
            raise BadInput(f"the pool needs at least one worker, got {workers}")
        self.workers, self.device = workers, device
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._busy: dict[Connection, list[int]] = {}
        """Worker -> the clients it computes; between two rounds empty, except after an error."""
        self._imports: tuple[str, ...] = ()
        """The users' files and modules that the processes imported."""
        self.elsewhere = Stopwatch()

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        if self._busy:
            self.close()  # answers of a run that broke down must not be taken for this run's
        if self._imports != loaded():
            self.close()  # these processes lack what was imported since they started
        if not self._processes:
            self._start()
        self._data = data
        described = data.shared() if hasattr(data, "shared") else data
        for link in self._processes:
            with self._naming_loss(link, "getting ready"):
                send(link, (program, described, str(self.device)))
        for link in self._processes:
            self._hear(link, "getting ready")

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        for answers, states in self._ask_all(ids, job, "client", ask):
            for (cid, *rest), up, kept in zip(answers, states[::2], states[1::2], strict=True):
                yield cid, Up(up, *rest), kept

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for answers, _ in self._ask_all(ids, job, "evaluate", ask):
            yield from answers

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
        self._imports = loaded()
        for _ in range(self.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self._imports), daemon=True)
            with ignoring_ctrl_c():  # only the main process handles it
                process.start()
                theirs.close()
                self._processes[ours] = process

    def _ask_all(
        self, ids: Sequence[int], job: JobOf, task: str, ask: Ask | None
    ) -> Iterator[tuple[list[Any], list[State]]]:
        size = partial(size_of, self._data)
        queue = (Bundle.of(jobs, task, ask) for jobs in portions(ids, job, size, self.workers))
        busy = self._busy
        for link in self._processes:
            if (bundle := self._packed(queue)) is not None:
                self._post(link, bundle)
        ready = self._packed(queue)  # packed before a worker waits for it
        while busy:
            with timed("waiting"):
                answered = [link for link in wait(list(busy)) if isinstance(link, Connection)]
            for link in answered:
                answer = self._hear(link, named(busy[link]))
                del busy[link]
                if ready is not None:  # first of all, so that the worker does not wait
                    self._post(link, ready)
                yield answer
                ready = self._packed(queue)

    def _packed(self, queue: Iterator[Bundle]) -> Bundle | None:
        with timed("transfer"):
            return next(queue, None)

    def _post(self, link: Connection, bundle: Bundle) -> None:
        self._busy[link] = bundle.ids
        with timed("transfer"), self._naming_loss(link, f"taking {named(bundle.ids)}"):
            send(link, bundle.head, bundle.states)

    def _hear(self, link: Connection, doing: str) -> tuple[list[Any], list[State]]:
        with timed("transfer"), self._naming_loss(link, doing):
            head, states = receive(link)
            return read_head(head, self.elsewhere), states

    @contextmanager
    def _naming_loss(self, link: Connection, doing: str) -> Iterator[None]:
        """A worker that is gone becomes an error that names what it was doing."""
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError):
            process = self._processes[link]
            process.join(timeout=5)
            raise WorkerLost(
                f"a worker process ended (exit code {process.exitcode}) at {doing}; check memory,"
                " in a script keep the call under `if __name__ == '__main__':`, then resume"
            ) from None
