"""Clients in blocks: equally large clients train side by side, where a trial showed that it pays.

One batched operation stands for one small operation per client, which saves the time between
operations. Whether the bits stay the same depends on shapes and on the machine's kernels, so it is
tried: in two rounds the first block of every kind is computed both ways, and others of that kind
are computed as one only if every byte of every answer and every gradient agreed and it was faster.
Kernels choose by shape, never by value, so what held for one block holds for all that do the same;
what a hook does otherwise from the third round on is not seen by any trial, and rests on
`core.block` alone.

The engine `vectorized` computes all its clients like this; the workers of `pool` and `ray` those
that come in one message. The outcome of every trial is logged, with the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import torch

from fedloom.core.block import has_rows, trains_together
from fedloom.core.client import client, clients_together
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.site import Visit
from fedloom.core.tree import State
from fedloom.core.witness import gradients_of
from fedloom.engines.bundle import TOGETHER
from fedloom.errors import FedloomError

log = logging.getLogger("fedloom")

SIZES = TOGETHER[::-1]
"""Clients in a block. Few sizes, because each needs a trial of its own; and larger blocks are no
faster, because their models do not stay in a processor's cache."""
GAIN = 1.1
"""How many times faster a block must be than its clients one by one."""
ROUNDS_TRIED = 2
"""In so many rounds a kind has its trial: what a method does from its second round on is then seen
too."""
FAILED_TRIALS = 3
"""After so many trials without success no other kind of block is tried."""
MOST_NUMBERS = 2**26
"""In the models and inputs of a block (256 MB)."""
CANNOT_BE_BATCHED = (RuntimeError, ValueError, FedloomError)
"""What a block may raise where its clients one by one may not: torch has no batched form of an
operation or too little memory, clients train differently, a loss is not finite."""

Answer = tuple[Up, State]
Kind = tuple[Hashable, int]
"""What clients have in common, and how many of them are in the block."""
ComputeBlock = Callable[[Sequence[Visit], Ask | None, Callable[[], None]], list[Answer]]


class TooSlow(FedloomError):
    """A block took about as long as its clients one by one, or longer."""


class Blocks:
    """Answers the visits of one run, in blocks where a trial allowed it. For any engine."""

    def __init__(
        self,
        compute: ComputeBlock = clients_together,
        clock: Callable[[], float] = time.perf_counter,
        report: Callable[[str], None] = log.info,
    ) -> None:
        """`report` gets a sentence for every trial, and for a block that failed later."""
        self._compute, self._clock, self._report = compute, clock, report
        self.verdicts: dict[Kind, bool] = {}
        """Kind of block -> is it computed as one?"""
        self._accepted_in: dict[Kind, set[int]] = {}
        """Kind of block -> rounds in which a trial accepted it."""
        self._slow: set[Kind] = set()
        self._together: dict[Hashable, bool] = {}
        """Kind of round, network, device -> may its clients train side by side?"""
        self._warm = False

    def answer(self, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """`client` for every visit, in their order."""
        answers: dict[int, Answer] = {}
        for kind, places in self._blocks(visits):
            block = self._block(kind, [visits[i] for i in places], ask)
            answers |= zip(places, block, strict=True)
        return [answers[i] for i in range(len(visits))]

    def _blocks(self, visits: Sequence[Visit]) -> Iterator[tuple[Kind | None, list[int]]]:
        """Places of visits of one kind, in blocks of one of the sizes; kind None: the rest."""
        groups: dict[Hashable, list[int]] = {}
        for i, visit in enumerate(visits):
            groups.setdefault(self._common(visit), []).append(i)
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

    def _common(self, visit: Visit) -> Hashable:
        """What shapes, strides and order of operations depend on, within a run; None: no block."""
        program, device = visit.program, visit.device
        of_round = visit.down.plan.kind, visit.cid % len(program.nets), device
        if of_round not in self._together:
            kind = visit.down.plan.kind
            self._together[of_round] = trains_together(program, visit.cid, kind, device)
        if not self._together[of_round] or not has_rows(visit.data):
            return None
        return *of_round, len(visit.data.train)

    def _block(self, kind: Kind | None, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        if kind is not None and self._worth_trying(kind, visits[0].down.plan.t):
            return self._try(kind, visits, ask)
        if kind is not None and self.verdicts.get(kind):
            try:
                return self._compute(visits, ask, lambda: None)
            except CANNOT_BE_BATCHED as e:
                # If it is a client's error, the client by itself raises it as on any other engine.
                self.verdicts[kind] = False
                self._report(f"{_named(visits)} could not be computed as one ({_reason(e)})")
        return _one_by_one(visits, ask)

    def _worth_trying(self, kind: Kind, t: int) -> bool:
        known, rounds = self.verdicts, self._accepted_in.get(kind, set())
        if known.get(kind):
            return t not in rounds and len(rounds) < ROUNDS_TRIED
        return kind not in known and (len(known) < FAILED_TRIALS or any(known.values()))

    def _try(self, kind: Kind, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """Both ways. The answer is the plain one in any case."""
        start = self._clock()
        plain = _one_by_one(visits, ask)
        seconds = self._clock() - start
        try:
            if not self._warm:  # what is loaded at the first use is no cost of a block
                self._compute(visits[:2], ask, lambda: None)
                self._warm = True
            batched = self._within(seconds / GAIN, visits, ask)
            agree = all(map(_same, plain, batched)) and self._same_gradients(visits)
        except TooSlow:
            # The first time it may have been a pause of the machine: the kind gets a second trial.
            if kind in self._slow:
                self._decide(kind, visits, "it was not faster, twice")
            self._slow.add(kind)
        except CANNOT_BE_BATCHED as e:
            self._decide(kind, visits, f"it cannot be batched ({_reason(e)})")
        else:
            self._decide(kind, visits, "" if agree else "its bytes were not the same")
            self._accepted_in.setdefault(kind, set()).add(visits[0].down.plan.t)
        return plain

    def _same_gradients(self, visits: Sequence[Visit]) -> bool:
        """Of steps so small that weights hardly move, answers agree where kernels do not."""
        alone = gradients_of(lambda: _one_by_one(visits, None))
        return alone == gradients_of(lambda: self._compute(visits, None, lambda: None))

    def _decide(self, kind: Kind, visits: Sequence[Visit], objection: str) -> None:
        self.verdicts[kind] = not objection
        verdict = f"refused: {objection}" if objection else "accepted: faster, with the same bytes"
        self._report(f"{_named(visits)} as one computation, {verdict}")

    def _within(self, seconds: float, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """The block, given up when it takes too long: it could be many times slower."""
        end = self._clock() + seconds

        def watch() -> None:
            if self._clock() > end:
                raise TooSlow

        answers = self._compute(visits, ask, watch)
        watch()
        return answers


def _one_by_one(visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
    return [client(visit, ask) for visit in visits]


def _numbers(visit: Visit) -> int:
    """In one client's model and inputs."""
    net = visit.program.net(visit.cid)
    model = sum(v.numel() for v in net.initial.values())
    return model + len(visit.data.train) * torch.Size(net.shape).numel()


def _named(visits: Sequence[Visit]) -> str:
    return f"{len(visits)} clients of {len(visits[0].data.train)} rows"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _same(a: Answer, b: Answer) -> bool:
    """Every byte, and every digit of the metrics and scores."""
    (up_a, kept_a), (up_b, kept_b) = a, b
    numbers_a, numbers_b = (
        [up.n, *map(repr, up.metrics.items()), repr(up.scores)] for up in (up_a, up_b)
    )
    return (
        numbers_a == numbers_b
        and _bytes(up_a.state) == _bytes(up_b.state)
        and _bytes(kept_a) == _bytes(kept_b)
    )


def _bytes(state: Mapping[str, Mapping[str, torch.Tensor]]) -> list[tuple[object, ...]]:
    return [
        (name, k, v.dtype, v.shape, v.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tree in state.items()
        for k, v in tree.items()
    ]
