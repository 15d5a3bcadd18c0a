"""Whole runs side by side: one process each, with one thread, on the same data."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Generic, Self, TypeVar

from fedloom.core.threads import on_one_thread
from fedloom.data import FederatedData
from fedloom.engines.worker import failure, rebuilt
from fedloom.errors import WorkerLost
from fedloom.extensions import load_extensions, loaded
from fedloom.launch import forking
from fedloom.record import Headline, RoundRecord
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Model
from fedloom.runs.watcher import RunView, Watcher
from fedloom.signals import delaying_stops, ignoring_ctrl_c

log = logging.getLogger("fedloom")

UNREADABLE = (
    "runs go one after another, because other processes cannot read a program that came from"
    " standard input; save it as a file to have them side by side"
)
T = TypeVar("T")
Work = Callable[[RunConfig, FederatedData, Model | None, Sequence[Watcher]], T]
"""A function of a module: from a configuration to what its run came to."""


@dataclass(frozen=True)
class Heard:
    """How far a run in another process has come."""

    place: int
    """In the list of configurations."""
    done: int
    steps: int
    headline: Headline | None = None


class SideBySide(Generic[T]):
    """Runs on the same data, `workers` of them at a time; with one, in this process.

    A context: its processes end with it. `hear` is told of every step of a run in another process,
    by a thread of this one.
    """

    def __init__(
        self,
        work: Work[T],
        data: FederatedData,
        model: Model | None,
        workers: int,
        hear: Callable[[Heard], None] | None = None,
    ) -> None:
        self.work, self.data, self.model = work, data, model
        if workers > 1 and not forking.possible():
            log.warning("%s", UNREADABLE)
            workers = 1
        told = (work, data.shared(), model)
        self._processes = _Processes[T](told, workers, hear) if workers > 1 else None

    def __enter__(self) -> Self:
        if self._processes is not None:
            self._processes.listen()
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.close()

    def outcomes(self, configs: Sequence[RunConfig]) -> Iterator[tuple[int, T]]:
        """(place in the list, outcome), as they come."""
        if self._processes is not None:
            yield from self._processes.outcomes(configs)
            return
        for place, config in enumerate(configs):
            yield place, self.work(config, self.data, self.model, ())


class _Processes(Generic[T]):
    """The processes, how they are told to stop, and how they are heard."""

    def __init__(
        self, told: tuple[Any, ...], workers: int, hear: Callable[[Heard], None] | None
    ) -> None:
        """`told` is what all runs have in common: the work, the data, the model."""
        context = forking.context()
        self._stop = context.Event()
        # Short messages: a pipe takes each as a whole, so that its writers need no lock, which one
        # that is killed would never give back.
        self._ear, self._mouth = context.Pipe(duplex=False)
        self._listener: threading.Thread | None = None
        if hear is not None:
            self._listener = threading.Thread(target=self._listen, args=(hear,), daemon=True)
        mouth = None if hear is None else self._mouth
        given = (dict(os.environ), loaded(), *told, self._stop, mouth)
        self._executor = ProcessPoolExecutor(workers, context, _begin, given)

    def listen(self) -> None:
        if self._listener is not None:
            self._listener.start()

    def close(self) -> None:
        self._stop.set()
        self._executor.shutdown(cancel_futures=True)
        if self._listener is not None:
            self._mouth.send(None)
            self._listener.join()
        self._ear.close()
        self._mouth.close()

    def outcomes(self, configs: Sequence[RunConfig]) -> Iterator[tuple[int, T]]:
        try:
            # A pool that a stop meets while it starts cannot be shut down, and processes that start
            # now leave Ctrl-C to this one.
            with delaying_stops(), ignoring_ctrl_c():
                places = {self._executor.submit(_work, i, c): i for i, c in enumerate(configs)}
                # A loss is noticed by a thread that looks for new processes when something is
                # handed over, and that may be before the process for it begins.
                self._executor.submit(_nothing)
            for future in as_completed(places):
                yield places[future], _outcome(future)
        except BrokenProcessPool:
            raise WorkerLost(
                "a process that ran beside others ended; in a script keep the call under"
                " `if __name__ == '__main__':`, or else check memory, then give the same command"
            ) from None

    def _listen(self, hear: Callable[[Heard], None]) -> None:
        while (heard := self._ear.recv()) is not None:
            try:
                hear(heard)
            except Exception as e:  # nobody reads on, and the runs would wait for that
                log.warning("progress cannot be shown: %s", e)


@dataclass(frozen=True)
class _Failed:
    """In place of an outcome: what `failure` says of an error."""

    head: dict[str, Any]


def _outcome(future: Future[T | _Failed]) -> T:
    answer = future.result()
    if isinstance(answer, _Failed):
        raise rebuilt(answer.head)
    return answer


# ------------------------------------------------------------------ in the other processes


@dataclass(frozen=True)
class _Aside(Watcher):
    """Tells the main process of every step, and ends the run after the one in which that stopped;
    its checkpoint is saved."""

    place: int
    stop: Event
    mouth: Connection | None

    def begun(self, run: RunView) -> None:
        self._tell(run, None)

    def step(self, run: RunView, record: RoundRecord) -> None:
        self._tell(run, record.headline)
        if self.stop.is_set():
            raise KeyboardInterrupt

    def _tell(self, run: RunView, headline: Headline | None) -> None:
        if self.mouth is not None:
            self.mouth.send(Heard(self.place, run.done, len(run.experiment.plans), headline))


_held: dict[str, Any] = {}
"""What `_begin` was given, for the runs of this process."""


def _begin(
    environment: Mapping[str, str],
    imports: Sequence[str],
    work: Work[Any],
    data: FederatedData,
    model: Model | None,
    stop: Event,
    mouth: Connection | None,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forking.take_environment(environment)
    on_one_thread()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load_extensions(imports)
    _held.update(work=work, data=data, model=model, stop=stop, mouth=mouth)


def _end_with_parent() -> None:
    """A killed main process must not leave runs behind that hold their folders."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _nothing() -> None:
    """Is handed over for the sake of it."""


def _work(place: int, config: RunConfig) -> Any:
    if _held["stop"].is_set():
        return None  # it was handed over before the stop
    aside = _Aside(place, _held["stop"], _held["mouth"])
    try:
        return _held["work"](config, _held["data"], _held["model"], [aside])
    except KeyboardInterrupt:
        return None  # nobody waits for it
    except Exception as e:
        return _Failed(failure(e))  # not every error survives pickling
