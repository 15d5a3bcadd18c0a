"""Whose state is where, and who takes whose work: the bookkeeping of an engine with many nodes."""

from __future__ import annotations

import torch

from fedloom.core.message import Down, Plan
from fedloom.core.tree import State
from fedloom.engines import Job
from fedloom.engines.affinity import Queues, Whereabouts, deal


def state(numbers: int = 1) -> State:
    return {"model": {"w": torch.zeros(numbers), "b": torch.zeros(1)}}


def job(cid: int, own: State | None = None) -> Job:
    return Job(cid, Down(Plan(1), {}), own)


def test_only_the_very_state_counts_as_there() -> None:
    """An equal copy (from the disk, of another round) is sent; so is a state of which one tensor
    was exchanged, and any state to another worker."""
    where, kept = Whereabouts(), state()
    where.answered(1, 7, kept)
    assert where.home(7) == 1
    assert where.has(1, job(7, kept))
    assert where.has(1, job(7, {"model": dict(kept["model"])}))
    assert not where.has(0, job(7, kept))
    assert not where.has(1, job(8, kept))
    assert not where.has(1, job(7, state()))
    assert not where.has(1, job(7, None))
    assert not where.has(1, job(7, {"model": {**kept["model"], "b": torch.zeros(1)}}))
    assert not where.has(1, job(7, {"model": {"w": kept["model"]["w"]}}))
    del kept
    assert not where.has(1, job(7, state()))


def test_a_worker_forgets_who_moved_and_what_is_too_much() -> None:
    """A state of 9 + 1 numbers has 40 bytes: of 100 bytes two find place, the third does not. When
    the first moves away, there is place again."""
    where, kept = Whereabouts(budget=100), {cid: state(9) for cid in range(3)}
    for cid in range(3):
        where.answered(0, cid, kept[cid])
    assert [where.home(cid) for cid in range(3)] == [0, 0, None]
    assert where.to_forget(0) == [2]
    assert where.to_forget(0) == []  # told once
    where.answered(1, 0, kept[0])
    assert where.home(0) == 1
    assert where.to_forget(0) == [0]
    where.answered(0, 2, kept[2])
    assert where.home(2) == 0
    assert where.to_forget(0) == where.to_forget(1) == []


def test_what_is_kept_again_is_not_forgotten() -> None:
    """Client 2 was too much and the worker was not told yet; its next state fits."""
    where, large, small = Whereabouts(budget=100), state(40), state(9)
    where.answered(0, 2, large)
    where.answered(0, 2, small)
    assert where.has(0, job(2, small))
    assert where.to_forget(0) == []


def test_nothing_kept_is_nowhere() -> None:
    where = Whereabouts()
    where.answered(0, 3, state())
    where.answered(0, 3, {})
    assert where.home(3) is None
    assert not where.has(0, job(3, {}))


def test_a_lost_worker_has_nothing() -> None:
    """And its place is free again: 60 + 60 bytes would be more than 100."""
    where, kept = Whereabouts(budget=100), state(14)
    where.answered(0, 1, kept)
    where.answered(1, 2, state(14))
    where.lost(0)
    assert (where.home(1), where.home(2)) == (None, 1)
    where.answered(0, 1, kept)
    assert where.home(1) == 0


def test_strangers_go_to_whoever_has_least_to_do() -> None:
    """Clients 1 and 3 live at worker 0 (7 rows). 0, 2 and 4, of 5, 1 and 3 rows, go to worker 1,
    which then has 9; so 5 goes to worker 0."""
    rows = [5, 4, 1, 3, 3, 2]
    dealt = deal(range(6), {1: 0, 3: 0}.get, rows.__getitem__, 2)
    assert dealt == [[1, 3, 5], [0, 2, 4]]


def test_an_idle_worker_takes_from_the_longest_queue() -> None:
    """Worker 2 has no clients; worker 1 has 16 rows against worker 0's 8, in four clients of 4: a
    portion is a quarter of what is left. Everybody is taken once."""
    rows = [4, 4, 4, 4, 4, 4]
    queues = Queues(range(6), job, rows.__getitem__, [[0, 1], [2, 3, 4, 5], []])
    taken = [[j.cid for j in queues.take(worker) or []] for worker in (2, 2, 0, 1, 1, 1, 2)]
    assert taken == [[2], [3], [0], [4], [5], [1], []]
