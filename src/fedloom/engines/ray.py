"""Actors of a Ray cluster: the pool over many machines, and each keeps its clients' states.

Program and data go into the object store once per run, a round's common tensors once per call, so
they cross to each node once. What a client keeps stays with its actor, and also comes up with the
answer: so nothing is lost with a node, and any actor can redo any client with the same bytes.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.data import Federation, size_of
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.site import CPU
from fedloom.core.stopwatch import Stopwatch, timed
from fedloom.core.tree import State, with_own_memory
from fedloom.data import FederatedData
from fedloom.engines import Engine, Job, JobOf
from fedloom.engines.actor import Actor, addressed, import_ray, packed, unpacked
from fedloom.engines.affinity import Queues, Whereabouts, deal
from fedloom.engines.bundle import Bundle, named
from fedloom.engines.worker import read_head
from fedloom.errors import BadInput, WorkerLost
from fedloom.extensions import loaded
from fedloom.signals import keeping_handlers

AHEAD = 2
"""Portions an actor has: one in work, and one more so that it never waits for the driver."""
MOST_LOSSES = 3
"""Losses in a row after which a portion, or the start of an actor, is given up."""
CONNECT_SECONDS = 10
FIRST_SECONDS, OTHERS_SECONDS = 120, 10
"""How long a run waits for its first actor, and then for the others, which may join later."""


@dataclass
class _Portion:
    """Some clients' jobs, and how often they were lost with their actor."""

    jobs: list[Job]
    losses: int = 0


@dataclass(eq=False)
class _Member:
    """One actor, and its calls in the order in which it answers them; the first one, without
    clients, makes it ready for a run."""

    handle: Any
    ready: bool = False
    under_way: deque[tuple[Any, _Portion | None]] = field(default_factory=deque)


@dataclass
class _Request:
    """One call of `clients` or `evaluate`."""

    task: str
    ask: Ask | None
    queues: Queues
    common: list[Tensor]
    """Tensors that go through the object store, which has them at `place`."""
    place: Any
    again: deque[_Portion] = field(default_factory=deque)
    """What was lost."""

    def __post_init__(self) -> None:
        self._numbers = {id(value): i for i, value in enumerate(self.common)}

    def take(self, worker: int) -> _Portion | None:
        """The next portion for a worker."""
        if self.again:
            return self.again.popleft()
        jobs = self.queues.take(worker)
        return None if jobs is None else _Portion(jobs)

    def message(self, portion: _Portion, worker: int, where: Whereabouts) -> list[Any]:
        """A portion for a worker, without what is there already."""
        yours = [i for i, job in enumerate(portion.jobs) if where.has(worker, job)]
        bundle = Bundle.of(portion.jobs, self.task, self.ask)
        return addressed(bundle, self._numbers, yours, where.to_forget(worker))


class Ray(Engine):
    """`workers` actors of one CPU each, on a cluster or (no address) on one that is started here.

    Actors start with the first run and stay for the next ones. One that is lost is replaced, and
    whoever is free redoes its clients.
    """

    def __init__(
        self, workers: int = 2, device: torch.device = CPU, address: str | None = None
    ) -> None:
        if workers < 1:
            raise BadInput(f"the ray engine needs at least one worker, got {workers}")
        self.workers, self.device, self.address = workers, device, address
        self.elsewhere = Stopwatch()
        self._ray: Any = None
        self._connected = False
        self._members: list[_Member] = []

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        self._ray = import_ray()
        self._connect()
        self._data, self._where, self._failed_starts = data, Whereabouts(), 0
        self._run = [self._ray.put(program), self._ray.put(_in_memory(data))]
        idle = [m for m in self._members if m.ready and not m.under_way]
        for member in self._members:
            if member not in idle:  # still computes for a run that broke down
                self._ray.kill(member.handle)
        handles = [m.handle for m in idle] + [None] * (self.workers - len(idle))
        self._members = [self._prepared(handle) for handle in handles]
        self._gather()

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        for worker, answers, states in self._ask_all(ids, job, "client", ask):
            for (cid, *rest), up, part in zip(answers, states[::2], states[1::2], strict=True):
                kept = with_own_memory(part)  # the tensors that the runner will hold
                self._where.answered(worker, cid, kept)
                yield cid, Up(up, *rest), kept

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for _, answers, _ in self._ask_all(ids, job, "evaluate", ask):
            yield from answers

    def close(self) -> None:
        if self._ray is None:
            return
        if self._ray.is_initialized():
            for member in self._members:
                self._ray.kill(member.handle)
        self._members, self._run = [], []
        if self._connected:
            self._ray.shutdown()  # a cluster that was there before stays
            self._connected = False

    # ------------------------------------------------------------------ cluster and actors

    def _connect(self) -> None:
        if self._ray.is_initialized():
            self._check_connection()
            return
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            with keeping_handlers():  # Ray's own would end the process on SIGTERM without a word
                if self.address is None:
                    self._ray.init(
                        address="local",
                        num_cpus=self.workers,
                        include_dashboard=False,
                        _node_ip_address="127.0.0.1",
                        **quiet,
                    )
                else:
                    _check_listening(self.address)
                    self._ray.init(address=self.address, **quiet)
        except (OSError, RuntimeError, ValueError) as e:
            wanted = "start Ray here" if self.address is None else f"reach Ray at {self.address!r}"
            raise BadInput(
                f"cannot {wanted} ({_reason(e)}); start a cluster with `ray start --head` and"
                " give its address, or no address to have one started"
            ) from None
        self._connected, self._members = True, []

    def _check_connection(self) -> None:
        """A connection that exists is used, unless it is to another cluster than was asked for."""
        connected = self._ray.get_runtime_context().gcs_address
        if not self._connected and self.address not in (None, "auto", connected):
            raise BadInput(
                f"this process is connected to Ray at {connected!r}, not at {self.address!r}; call"
                " ray.shutdown() first, or give no address to use that one"
            )

    def _prepared(self, handle: Any = None) -> _Member:
        """An actor, new or there before, that is about to be ready for this run."""
        cuda = self.device.type == "cuda"
        if handle is None:
            wanted = {"num_cpus": 1, "num_gpus": int(cuda), "scheduling_strategy": "SPREAD"}
            handle = self._ray.remote(**wanted)(Actor).remote(sys.path)
        device = "cuda" if cuda else str(self.device)  # Ray shows an actor only its own
        opening = handle.open.remote(self._run, device, loaded())
        return _Member(handle, under_way=deque([(opening, None)]))

    def _gather(self) -> None:
        """Wait for the first actor, and a little for the others."""
        while waiting := {m.under_way[0][0]: w for w, m in self._numbered() if not m.ready}:
            some = len(waiting) < self.workers
            patience = OTHERS_SECONDS if some else FIRST_SECONDS
            done, _ = self._ray.wait(list(waiting), timeout=patience)
            if not done and some:
                return
            if not done:
                raise BadInput(
                    f"no actor started on the Ray cluster within {FIRST_SECONDS} seconds; each"
                    " needs one free CPU there: add a node, or end what else is running"
                )
            self._hear(waiting[done[0]], None)

    def _replace(self, worker: int, request: _Request | None, why: Exception) -> None:
        """Another actor for one that was lost; what it had to do is to be done again."""
        member = self._members[worker]
        self._ray.kill(member.handle)  # it may still run, out of reach
        self._where.lost(worker)
        lost = [portion for _, portion in member.under_way if portion is not None]
        if not member.ready:
            self._failed_starts += 1
            if self._failed_starts == MOST_LOSSES:
                raise WorkerLost(
                    f"an actor of the Ray cluster could not start ({_reason(why)}); every node"
                    " needs this Python, fedloom and your own modules"
                )
        elif lost:
            lost[0].losses += 1  # only this one was being computed
            if lost[0].losses == MOST_LOSSES:
                who = named([job.cid for job in lost[0].jobs])
                raise WorkerLost(
                    f"an actor of the Ray cluster ended {MOST_LOSSES} times at {who}"
                    f" ({_reason(why)}); check the nodes' memory, then resume"
                )
        if request is not None:
            request.again.extend(lost)
        self._members[worker] = self._prepared()

    # ------------------------------------------------------------------ asking

    def _ask_all(
        self, ids: Sequence[int], job: JobOf, task: str, ask: Ask | None
    ) -> Iterator[tuple[int, list[Any], list[State]]]:
        left = len(ids)
        if not left:
            return
        with timed("transfer"):
            request = self._request(ids, job, task, ask)
        self._load(request)
        while left:
            for worker in self._answered():
                answer = self._hear(worker, request)
                self._load(request)  # first of all, so that workers do not wait
                if answer is not None:
                    left -= len(answer[0])
                    yield worker, *answer

    def _request(self, ids: Sequence[int], job: JobOf, task: str, ask: Ask | None) -> _Request:
        first = job(ids[0])  # its download has the round's common tensors; each job is made once

        def job_of(cid: int) -> Job:
            return first if cid == first.cid else job(cid)

        size = {cid: size_of(self._data, cid) for cid in ids}.__getitem__
        dealt = deal(ids, self._where.home, size, self.workers)
        common = [value for tree in first.down.state.values() for value in tree.values()]
        tree = {str(i): value for i, value in enumerate(common)}
        place = self._ray.put(packed(None, [{"common": tree}]))
        return _Request(task, ask, Queues(ids, job_of, size, dealt), common, place)

    def _load(self, request: _Request) -> None:
        """Send work to every actor that has less than `AHEAD` portions."""
        for ahead in range(1, AHEAD + 1):
            for worker, member in self._numbered():
                if not member.ready or len(member.under_way) >= ahead:
                    continue
                with timed("transfer"):
                    portion = request.take(worker)
                    if portion is None:
                        return
                    message = request.message(portion, worker, self._where)
                    answer = member.handle.answer.remote(message, [request.place])
                    member.under_way.append((answer, portion))

    def _answered(self) -> list[int]:
        """Who has answered; waits for the first."""
        calls = {m.under_way[0][0]: w for w, m in self._numbered() if m.under_way}
        working = any(m.ready and m.under_way for m in self._members)
        with timed("waiting"):
            done, _ = self._ray.wait(list(calls), timeout=None if working else FIRST_SECONDS)
        if not done:
            raise WorkerLost(
                "every actor of the Ray cluster was lost, and none started again within"
                f" {FIRST_SECONDS} seconds; look after the cluster, then resume"
            )
        done, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [calls[call] for call in done]

    def _hear(self, worker: int, request: _Request | None) -> tuple[list[Any], list[State]] | None:
        """A worker's answer; None: it is ready for the run, or was lost."""
        member, lost = self._members[worker], self._ray.exceptions
        call, portion = member.under_way[0]
        try:
            with timed("transfer"):
                head, states = unpacked(self._ray.get(call))
        except (
            lost.RayActorError,
            lost.WorkerCrashedError,
            lost.NodeDiedError,
            lost.ObjectLostError,
            lost.OutOfMemoryError,
        ) as e:
            self._replace(worker, request, e)
            return None
        except lost.RayTaskError as e:
            # An actor answers with its own errors; these are Ray's around it, out of memory mostly.
            if not isinstance(e, lost.RaySystemError | MemoryError):
                raise
            self._replace(worker, request, e)
            return None
        member.under_way.popleft()
        answers = read_head(head, self.elsewhere)
        if portion is None:
            member.ready, self._failed_starts = True, 0
            return None
        return answers, states

    def _numbered(self) -> list[tuple[int, _Member]]:
        return list(enumerate(self._members))


def _in_memory(data: Federation) -> Federation:
    """The data in memory: other nodes do not see this machine's files."""
    return data.in_memory() if isinstance(data, FederatedData) else data


def _check_listening(address: str) -> None:
    """Raise OSError where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _reason(error: Exception) -> str:
    """The first sentence of the last line, which is where Ray says what happened."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().partition(". ")[0]
