"""Several clients computed as one, where a trial showed that nothing tells the difference but time.

One batched operation stands for one small operation per client, which saves the time between
operations. Whether the bits stay the same depends on shapes and on the machine's kernels, so it is
tried: in two rounds the first block of every kind is computed both ways, and others of that kind
are computed as one only if every byte of every answer (of training, also every gradient) agreed and
it was faster. Kernels choose by shape, never by value, so what held for one block holds for all
that do the same; what a hook does otherwise from the third round on is not seen by any trial, and
rests on the computation alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedloom.core.site import Visit
from fedloom.errors import FedloomError

GAIN = 1.1
"""How many times faster a block must be than its clients one by one."""
ROUNDS_TRIED = 2
"""In so many rounds a kind has its trial: what a method does from its second round on is then seen
too."""
FAILED_TRIALS = 3
"""After so many trials without success no other kind of block is tried."""
CANNOT_BE_BATCHED = (RuntimeError, ValueError, FedloomError)
"""What a block may raise where its clients one by one may not: torch has no batched form of an
operation or too little memory, clients train differently, a loss is not finite."""

Q = TypeVar("Q")
"""What is asked of a client."""
A = TypeVar("A")
"""What it answers."""
Kind = tuple[Hashable, int]
"""What clients have in common, and how many of them are in the block."""
Clock = Callable[[], float]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Work(Generic[Q, A]):
    """Something that clients are asked for, in two ways."""

    alone: Callable[[Visit, Q], A]
    together: Callable[[Sequence[Visit], Q, Callable[[], None]], list[A]]
    """Is given a function to call before every longer step, which may raise."""
    same: Callable[[A, A], bool]
    """Are two answers the same to every byte?"""
    named: Callable[[Sequence[Visit]], str]
    """A block, for people."""
    inside: Callable[[Callable[[], object]], int] | None = None
    """A number that stands for what happens while a function computes, and must be the same, too;
    None: answers tell enough."""


class TooSlow(FedloomError):
    """A block took about as long as its clients one by one, or longer."""


class Trials(Generic[Q, A]):
    """One kind of work in one run: what was tried, and how it went."""

    def __init__(
        self, work: Work[Q, A], clock: Clock = time.perf_counter, *, report: Report
    ) -> None:
        """`report` gets a sentence for every trial, and for a block that failed later."""
        self.work, self._clock, self._report = work, clock, report
        self.verdicts: dict[Kind, bool] = {}
        """Kind of block -> is it computed as one?"""
        self._accepted_in: dict[Kind, set[int]] = {}
        """Kind of block -> rounds in which a trial accepted it."""
        self._slow: set[Kind] = set()
        self._warm = False

    def answers(self, kind: Kind | None, visits: Sequence[Visit], ask: Q) -> list[A]:
        """Of all clients of one block; kind None: one by one."""
        if kind is not None and self._worth_trying(kind, visits[0].down.plan.t):
            return self._try(kind, visits, ask)
        if kind is not None and self.verdicts.get(kind):
            try:
                return self.work.together(visits, ask, lambda: None)
            except CANNOT_BE_BATCHED as e:
                # If it is a client's error, the client by itself raises it as on any other engine.
                self.verdicts[kind] = False
                named = self.work.named(visits)
                self._report(f"{named} could not be computed as one ({_reason(e)})")
        return self._alone(visits, ask)

    def _alone(self, visits: Sequence[Visit], ask: Q) -> list[A]:
        return [self.work.alone(visit, ask) for visit in visits]

    def _worth_trying(self, kind: Kind, t: int) -> bool:
        known, rounds = self.verdicts, self._accepted_in.get(kind, set())
        if known.get(kind):
            return t not in rounds and len(rounds) < ROUNDS_TRIED
        return kind not in known and (len(known) < FAILED_TRIALS or any(known.values()))

    def _try(self, kind: Kind, visits: Sequence[Visit], ask: Q) -> list[A]:
        """Both ways. The answer is the plain one in any case."""
        start = self._clock()
        plain = self._alone(visits, ask)
        seconds = self._clock() - start
        try:
            if not self._warm:  # what is loaded at the first use is no cost of a block
                self.work.together(visits[:2], ask, lambda: None)
                self._warm = True
            batched = self._within(seconds / GAIN, visits, ask)
            agree = all(map(self.work.same, plain, batched)) and self._same_inside(visits, ask)
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

    def _same_inside(self, visits: Sequence[Visit], ask: Q) -> bool:
        if self.work.inside is None:
            return True
        alone = self.work.inside(lambda: self._alone(visits, ask))
        return alone == self.work.inside(lambda: self.work.together(visits, ask, lambda: None))

    def _decide(self, kind: Kind, visits: Sequence[Visit], objection: str) -> None:
        self.verdicts[kind] = not objection
        verdict = f"refused: {objection}" if objection else "accepted: faster, with the same bytes"
        self._report(f"{self.work.named(visits)} as one computation, {verdict}")

    def _within(self, seconds: float, visits: Sequence[Visit], ask: Q) -> list[A]:
        """The block, given up when it takes too long: it could be many times slower."""
        end = self._clock() + seconds

        def watch() -> None:
            if self._clock() > end:
                raise TooSlow

        answers = self.work.together(visits, ask, watch)
        watch()
        return answers


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
