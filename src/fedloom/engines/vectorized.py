"""The reference engine, with small equal clients computed in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from fedloom.core.data import Federation, size_of
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.tree import State, nbytes
from fedloom.engines import JobOf
from fedloom.engines.blocks import SIZES, Blocks
from fedloom.engines.bundle import MOST_WAITING
from fedloom.engines.inline import Inline


class Vectorized(Inline):
    """One process; `blocks` decides which clients are computed as one."""

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

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for some in self._alike(ids):
            visits = [self._visit(job(cid)) for cid in some]
            yield from zip(some, self.blocks.evaluate(visits, ask), strict=True)

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
