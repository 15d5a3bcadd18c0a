"""Work where the client's state is: which worker has which state, and which clients it gets."""

from __future__ import annotations

import heapq
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fedloom.core.tree import State, nbytes
from fedloom.engines import Job, JobOf
from fedloom.engines.bundle import portions

KEPT_BYTES = 512 * 2**20
"""Of clients' states that one worker keeps."""


class Whereabouts:
    """Which worker (by number) keeps which client's newest state, up to so many bytes each.

    Workers keep all they answer until they are told to forget it. When the budget is used up, the
    states that are kept stay, and new ones are not kept: where every client takes part in every
    round, dropping the oldest would drop the one that is needed next.
    """

    def __init__(self, budget: int = KEPT_BYTES) -> None:
        self._budget = budget
        self._at: dict[int, tuple[int, list[weakref.ref[Tensor]], int]] = {}
        self._bytes: Counter[int] = Counter()
        self._forget: defaultdict[int, set[int]] = defaultdict(set)

    def home(self, cid: int) -> int | None:
        """The worker that keeps a state of this client."""
        return self._at[cid][0] if cid in self._at else None

    def has(self, worker: int, job: Job) -> bool:
        """Whether this worker keeps the very state of the job: its tensors, not equal ones."""
        if job.own is None or self.home(job.cid) != worker:
            return False
        known, wanted = self._at[job.cid][1], _tensors(job.own)
        same_number = len(known) == len(wanted)
        return same_number and all(a() is b for a, b in zip(known, wanted, strict=True))

    def answered(self, worker: int, cid: int, kept: State) -> None:
        """A worker returned, and keeps, a client's new state."""
        before = self.home(cid)
        if before is not None:
            self._drop(cid)
            if before != worker:
                self._forget[before].add(cid)
        tensors, takes = _tensors(kept), nbytes(kept)
        if self._bytes[worker] + takes > self._budget:
            self._forget[worker].add(cid)
        elif tensors:
            self._at[cid] = worker, [weakref.ref(v) for v in tensors], takes
            self._bytes[worker] += takes
            self._forget[worker].discard(cid)  # the new state has replaced the one to forget

    def to_forget(self, worker: int) -> list[int]:
        """Clients whose states a worker shall forget, for its next message; each is named once."""
        return sorted(self._forget.pop(worker, ()))

    def lost(self, worker: int) -> None:
        """A worker is gone with all it kept."""
        for cid in [cid for cid, (at, *_) in self._at.items() if at == worker]:
            self._drop(cid)
        self._forget.pop(worker, None)

    def _drop(self, cid: int) -> None:
        worker, _, takes = self._at.pop(cid)
        self._bytes[worker] -= takes


class Queues:
    """A queue of clients for each worker; one whose own is empty takes from the longest."""

    def __init__(
        self,
        ids: Sequence[int],
        job: JobOf,
        size: Callable[[int], int],
        dealt: Sequence[Sequence[int]],
    ) -> None:
        self._size = size
        self._portions: list[Iterator[list[Job]]] = [
            portions(some, job, size, 1, len(ids)) for some in dealt
        ]
        self._left = [sum(map(size, some)) for some in dealt]

    def take(self, worker: int) -> list[Job] | None:
        """The next portion of a worker; None: all is given out."""
        longest = max(range(len(self._left)), key=self._left.__getitem__)
        for queue in (worker, longest):
            if (portion := next(self._portions[queue], None)) is not None:
                self._left[queue] -= sum(self._size(job.cid) for job in portion)
                return portion
        return None


def deal(
    ids: Sequence[int],
    home: Callable[[int], int | None],
    size: Callable[[int], int],
    workers: int,
) -> list[list[int]]:
    """Clients to the worker that keeps their state, the others to the worker with least to do.

    >>> deal([0, 1, 2, 3], {3: 1}.get, [9, 5, 4, 8].__getitem__, 2)
    [[0, 2], [1, 3]]
    """
    dealt: list[list[int]] = [[] for _ in range(workers)]
    unplaced = []
    for cid in ids:
        if (worker := home(cid)) is None:
            unplaced.append(cid)
        else:
            dealt[worker].append(cid)
    load = [(sum(map(size, some)), worker) for worker, some in enumerate(dealt)]
    heapq.heapify(load)
    for cid in unplaced:
        rows, worker = load[0]
        dealt[worker].append(cid)
        heapq.heapreplace(load, (rows + size(cid), worker))
    return [sorted(some) for some in dealt]


def _tensors(state: State) -> list[Tensor]:
    return [v for tree in state.values() for v in tree.values()]
