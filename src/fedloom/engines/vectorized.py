"""Clients in blocks: equally large clients train side by side, where that was measured to pay.

One batched operation stands for one small operation per client, which saves the time between
operations. Whether the bits stay the same depends on shapes and on the machine's kernels, so nobody
is asked to know: the first block of every kind is computed both ways, and blocks of that kind go
together only if every byte of every answer agreed and it was faster. Kernels choose by shape, never
by value, so what held for one block of a kind holds for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import torch

from fedloom.core.block import joinable
from fedloom.core.client import client, clients_together
from fedloom.core.data import Federation, size_of
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.core.tree import State, nbytes
from fedloom.engines import JobOf
from fedloom.engines.bundle import MOST_WAITING
from fedloom.engines.inline import Inline

SIZES = (64, 32, 16, 8)
"""Clients in a block. Few sizes, because each needs a trial of its own."""
GAIN = 1.1
"""How many times faster a block must be than its clients one by one."""
STRIKES = 3
"""After so many trials without success nothing more is tried."""
MOST_NUMBERS = 2**26
"""In the models and inputs of a block (256 MB)."""

Answer = tuple[Up, State]
Kind = tuple[Hashable, int]
"""What clients have in common, and how many of them are in the block."""
Together = Callable[[Sequence[Visit], Ask | None, Callable[[], None]], list[Answer]]


class TooSlow(Exception):
    """A block took about as long as its clients one by one, or longer."""


class Blocks:
    """Answers visits of one run, in blocks where a trial said so. For any engine."""

    def __init__(
        self,
        together: Together = clients_together,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._together, self._clock = together, clock
        self.verdicts: dict[Kind, bool] = {}
        """Kind of block -> does it go together?"""
        self._slow: set[Kind] = set()
        self._warm = False

    def answer(self, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """`client` for every visit, in their order."""
        answers: dict[int, Answer] = {}
        for kind, places in self._blocks(visits):
            found = self._block(kind, [visits[i] for i in places], ask)
            answers |= zip(places, found, strict=True)
        return [answers[i] for i in range(len(visits))]

    def _blocks(self, visits: Sequence[Visit]) -> Iterator[tuple[Kind | None, list[int]]]:
        """Places of visits of one kind, in blocks of one of the sizes; kind None: the rest."""
        groups: dict[Hashable, list[int]] = {}
        for i, visit in enumerate(visits):
            groups.setdefault(_common(visit), []).append(i)
        rest = groups.pop(None, [])
        for common, group in groups.items():
            places = group
            room = MOST_NUMBERS // _numbers(visits[places[0]])
            for size in (size for size in SIZES if size <= room):
                while len(places) >= size:
                    yield (common, size), places[:size]
                    places = places[size:]
            rest += places
        yield None, rest

    def _block(self, kind: Kind | None, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        if kind is not None and self._worth_trying(kind):
            return self._try(kind, visits, ask)
        if kind is not None and self.verdicts.get(kind):
            try:
                return self._together(visits, ask, lambda: None)
            except Exception:  # whatever it is, it is said as the reference engine says it
                pass
        return _one_by_one(visits, ask)

    def _worth_trying(self, kind: Kind) -> bool:
        known = self.verdicts
        return kind not in known and (len(known) < STRIKES or any(known.values()))

    def _try(self, kind: Kind, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """Both ways. The answer is the plain one in any case."""
        begun = self._clock()
        plain = _one_by_one(visits, ask)
        allowed = (self._clock() - begun) / GAIN
        try:
            if not self._warm:  # what is loaded at the first use is no cost of a block
                self._together(visits[:2], ask, lambda: None)
                self._warm = True
            found = self._within(allowed, visits, ask)
            self.verdicts[kind] = all(map(_same, plain, found))
        except TooSlow:
            if kind in self._slow:
                self.verdicts[kind] = False
            self._slow.add(kind)  # once may be a pause of the machine
        except Exception:  # layers that draw or cannot be batched, a loss that is not finite
            self.verdicts[kind] = False
        return plain

    def _within(self, seconds: float, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """The block together, given up when it takes too long: it could be many times slower."""
        end = self._clock() + seconds

        def watch() -> None:
            if self._clock() > end:
                raise TooSlow

        found = self._together(visits, ask, watch)
        watch()
        return found


class Vectorized(Inline):
    """The reference engine, in blocks."""

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        super().open(program, data, folder)
        self.blocks = Blocks()

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        for some in self._alike(ids):
            visits = [self._visit(job(cid)) for cid in some]
            for cid, answer in zip(some, self.blocks.answer(visits, ask), strict=True):
                yield cid, *answer

    def _alike(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """Clients with equally many rows, at most the largest block of them at a time.

        Aggregation goes by id: where answers that wait for their turn would fill the memory, the
        order stays as given.
        """
        size = partial(size_of, self._data)
        waiting = len(ids) * nbytes({METHOD: self._program.nets[0].initial})
        order = ids if waiting > MOST_WAITING else sorted(ids, key=lambda cid: (size(cid), cid))
        for _, equal in groupby(order, key=size):
            some = list(equal)
            yield from (some[i : i + SIZES[0]] for i in range(0, len(some), SIZES[0]))


def _one_by_one(visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
    return [client(visit, ask) for visit in visits]


def _common(visit: Visit) -> Hashable:
    """What shapes, strides and order of operations depend on, within a run; None: goes alone."""
    if not joinable(visit):
        return None
    net = visit.program.nets.index(visit.program.net(visit.cid))
    return visit.down.plan.kind, net, len(visit.data.train), visit.device


def _numbers(visit: Visit) -> int:
    """In one client's model and inputs."""
    net = visit.program.net(visit.cid)
    model = sum(v.numel() for v in net.initial.values())
    return model + len(visit.data.train) * torch.Size(net.shape).numel()


def _same(a: Answer, b: Answer) -> bool:
    """Every byte, and every digit of the metrics."""
    (up, kept), (up_b, kept_b) = a, b
    told, told_b = ([u.n, *map(repr, u.metrics.items()), repr(u.scores)] for u in (up, up_b))
    return (
        told == told_b and _bytes(up.state) == _bytes(up_b.state) and _bytes(kept) == _bytes(kept_b)
    )


def _bytes(state: Mapping[str, Mapping[str, torch.Tensor]]) -> list[tuple[object, ...]]:
    return [
        (name, k, v.dtype, v.shape, v.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tree in state.items()
        for k, v in tree.items()
    ]
