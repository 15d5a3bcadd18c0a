"""Trials side by side: one process each, with one thread, on the same data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any, Self

import torch

from fedloom.data import FederatedData
from fedloom.engines.worker import failure, rebuilt
from fedloom.errors import WorkerLost
from fedloom.extensions import load_extensions, loaded
from fedloom.record import RoundRecord
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Model
from fedloom.runs.watcher import RunView, Watcher
from fedloom.signals import delaying_stops, ignoring_ctrl_c
from fedloom.tuning.trial import Outcome, advance


class Trials:
    """Runs trials on the data of a tuning, `workers` of them at a time; with one, in this process.

    A context: its processes end with it.
    """

    def __init__(self, data: FederatedData, model: Model | None, workers: int) -> None:
        self.data, self.model, self.workers = data, model, workers
        self._executor: ProcessPoolExecutor | None = None
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        if workers > 1:
            given = (loaded(), data.shared(), model, self._stop)
            self._executor = ProcessPoolExecutor(workers, context, _begin, given)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def advance(self, configs: Sequence[RunConfig]) -> Iterator[tuple[int, Outcome]]:
        """(place in the list, outcome), as they come."""
        if self._executor is None:
            for place, config in enumerate(configs):
                yield place, advance(config, self.data, self.model)
            return
        # A pool that a stop meets while it starts cannot be shut down, and processes that start
        # now leave Ctrl-C to this one.
        with delaying_stops(), ignoring_ctrl_c():
            places = {self._executor.submit(_advance, c): i for i, c in enumerate(configs)}
        for future in as_completed(places):
            yield places[future], _outcome(future)


def _outcome(future: Future[Outcome | dict[str, Any]]) -> Outcome:
    try:
        answer = future.result()
    except BrokenProcessPool:
        raise WorkerLost(
            "a process that ran a trial ended; check memory, in a script keep the call under"
            " `if __name__ == '__main__':`, then give the same command"
        ) from None
    if isinstance(answer, dict):
        raise rebuilt(answer)
    return answer


# ------------------------------------------------------------------ in the other processes


@dataclass(frozen=True)
class _StopsWhenAsked(Watcher):
    """Ends a trial after the round in which the main process stopped; its checkpoint is saved."""

    stop: Event

    def step(self, run: RunView, record: RoundRecord) -> None:
        """Leave, if it was asked for."""
        if self.stop.is_set():
            raise KeyboardInterrupt


_held: dict[str, Any] = {}
"""What `_begin` was given, for the trials of this process."""


def _begin(imports: Sequence[str], data: FederatedData, model: Model | None, stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load_extensions(imports)
    _held.update(data=data, model=model, watchers=[_StopsWhenAsked(stop)])


def _end_with_parent() -> None:
    """A killed main process must not leave trials behind that hold their folders."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _advance(config: RunConfig) -> Outcome | dict[str, Any]:
    try:
        return advance(config, **_held)
    except KeyboardInterrupt:
        return Outcome(None, "stopped", 0.0, 0.0)  # nobody waits for it
    except Exception as e:
        return failure(e)  # not every error survives pickling
