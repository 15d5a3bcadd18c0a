"""Work in portions: several clients per message, so that small clients do not cost a message each,
and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Plan
from fedloom.core.tree import State, nbytes
from fedloom.engines import Job, JobOf

SHARES = 4
"""Into how many portions a worker's part of what is left is cut."""
SHARES_OF_SMALL = 2
"""The same of small clients, whose messages cost more beside what is computed."""
MOST_CLIENTS = 64
"""In one message."""
TOGETHER = (8, 16, 32)
"""Small clients go in portions of one of these sizes or twice the last, which a worker can compute
as whole blocks, in rounds that have so many for every worker."""
SMALL_CLIENT = 32
"""Rows below which a client is small."""
MOST_BYTES = 64 * 2**20
"""Of states in one message, beyond the first client's."""
MOST_WAITING = 512 * 2**20
"""Bytes of answers that may wait for their turn: aggregation goes by id, work by length."""


@dataclass(frozen=True)
class Bundle:
    """Jobs of one message."""

    ids: list[int]
    head: dict[str, Any]
    states: list[State]

    @classmethod
    def of(cls, jobs: Sequence[Job], task: str, ask: Ask | None) -> Bundle:
        """What is sent for some jobs of one round."""
        ids = [job.cid for job in jobs]
        head = {
            "task": task,
            "ids": ids,
            "plan": asdict(jobs[0].down.plan),
            "ask": None if ask is None else asdict(ask),
            "first": [job.own is None for job in jobs],
        }
        return cls(ids, head, [s for job in jobs for s in (job.down.state, job.own or {})])


def opened(head: dict[str, Any], states: list[State]) -> list[Job]:
    """The jobs of a message."""
    plan = Plan(**head["plan"])
    return [
        Job(cid, Down(plan, down), None if first else own)
        for cid, first, down, own in zip(
            head["ids"], head["first"], states[::2], states[1::2], strict=True
        )
    ]


def named(ids: Sequence[int]) -> str:
    """The clients of a message, for people.

    >>> named([3]), named([3, 1, 4])
    ('client 3', 'clients 1, 3, 4')
    """
    some = ", ".join(map(str, sorted(ids)[:5])) + (" ..." if len(ids) > 5 else "")
    return f"client{'s' if len(ids) > 1 else ''} {some}"


def portions(
    ids: Sequence[int],
    job: JobOf,
    size: Callable[[int], int],
    workers: int,
    everybody: int = 0,
) -> Iterator[list[Job]]:
    """The jobs in portions that shrink towards the end, so that all workers end together.

    `everybody` is how many clients the round has, where `ids` are only some of them.
    """
    if not ids:
        return
    work, left, first = sum(map(size, ids)), len(ids), job(ids[0])
    enough_for_all = left >= TOGETHER[0] * workers
    portion: list[Job] = []
    rows = carried = 0
    for cid in _order(ids, max(everybody, len(ids)) * nbytes(first.down.state), size):
        next_job = first if cid == first.cid else job(cid)  # each job is made once
        weight = nbytes(next_job.down.state) + nbytes(next_job.own or {})
        small = rows < SMALL_CLIENT * len(portion) and left >= TOGETHER[0] and enough_for_all
        shares = SHARES_OF_SMALL if small else SHARES
        whole = not small or len(portion) in TOGETHER
        enough = (rows * shares * workers >= work and whole) or len(portion) == MOST_CLIENTS
        if portion and (enough or carried + weight > MOST_BYTES):
            yield portion
            work, left = work - rows, left - len(portion)
            portion, rows, carried = [], 0, 0
        portion.append(next_job)
        rows += size(cid)
        carried += weight
    yield portion


def _order(ids: Sequence[int], answers: int, size: Callable[[int], int]) -> Sequence[int]:
    """Longest clients first. But answers wait for their turn in the aggregation: where theirs would
    take too much memory, the order stays as given, by id."""
    if answers > MOST_WAITING:
        return ids
    return sorted(ids, key=lambda cid: (-size(cid), cid))
