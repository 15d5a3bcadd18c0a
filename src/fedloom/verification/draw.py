"""What of a run is computed again, drawn at random, and the odds that a change is caught.

To compute an answer of a round again, one needs the states before that round: those of a kept
checkpoint, or else every round since the one before it. So the steps between two kept checkpoints
are a *stretch*, computed again as a whole or not at all. A stretch of one step costs nothing on the
way: there, single answers are drawn, and beside them whole steps, for what the server made of them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod

Answer = tuple[int, int]
"""Step and client."""


@dataclass(frozen=True)
class Drawn:
    """What is computed again."""

    stretches: tuple[range, ...]
    """Steps that are repeated whole, from the checkpoint before the first of each."""
    answers: tuple[Answer, ...]
    """Single ones, of steps whose checkpoint before is kept."""


@dataclass(frozen=True)
class Odds:
    """Probabilities that a draw catches a change at a place that nobody knows beforehand."""

    answer: float
    """In one answer of one client."""
    round: float
    """In all answers of one step."""
    client: float
    """In all answers of one client."""
    server: float
    """In what the server made of a step's answers."""

    def as_json(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


class Lottery:
    """All that can be drawn of a run, and how much of it is."""

    def __init__(
        self,
        answered: Sequence[Collection[int]],
        begins: Collection[int],
        share: float,
        steps: Collection[int] | None = None,
        clients: Collection[int] | None = None,
    ) -> None:
        """`answered` has every step's clients, `begins` the steps before which all states are at
        hand (0 is one of them). `steps` and `clients` restrict what is wanted; by default all is.
        """
        self.answered = answered
        self._clients = clients
        wanted = set(range(len(answered)) if steps is None else steps)
        stretches = list(_stretches(len(answered), begins, wanted))
        self.long = [s for s in stretches if len(s) > 1]
        self.single = [s[0] for s in stretches if len(s) == 1]
        self.answers = [(t, c) for t in self.single for c in answered[t] if self._wants(c)]
        self.wanted = [t for t in sorted(wanted) if 0 <= t < len(answered)]
        self.long_drawn = ceil(share * len(self.long))
        self.single_drawn = ceil(share * len(self.single)) if clients is None else 0
        self.answers_drawn = ceil(share * len(self.answers))

    def draw(self, seed: int) -> Drawn:
        """A sample; the same for the same seed."""
        chance = random.Random(seed)
        long = chance.sample(self.long, self.long_drawn)
        single = chance.sample(self.single, self.single_drawn)
        alone = chance.sample(self.answers, self.answers_drawn)
        whole = [*long, *(range(t, t + 1) for t in single)]
        return Drawn(
            tuple(sorted(whole, key=lambda steps: steps.start)),
            tuple(sorted(answer for answer in alone if answer[0] not in single)),
        )

    def caught(self, changed: Iterable[Answer]) -> float:
        """The probability that at least one of these answers is computed again.

        >>> two_rounds = [range(10), range(10)]
        >>> Lottery(two_rounds, begins=[0], share=0.05).caught([(1, 3)])  # one stretch, and drawn
        1.0
        >>> lottery = Lottery(two_rounds, begins=[0, 1], share=0.1, clients=range(10))
        >>> round(lottery.caught([(1, 3)]), 3), round(lottery.caught([(0, 3), (1, 3)]), 3)
        (0.1, 0.195)
        """
        places = set(changed)
        long = sum(any(t in steps for t, _ in places) for steps in self.long)
        single_steps = set(self.single)
        alone = {place for place in places if place[0] in single_steps}
        single = len({t for t, _ in alone})
        drawable = sum(self._wants(c) for _, c in alone)
        return 1 - (
            _missed(len(self.long), self.long_drawn, long)
            * _missed(len(self.single), self.single_drawn, single)
            * _missed(len(self.answers), self.answers_drawn, drawable)
        )

    def odds(self) -> Odds | None:
        """Of changes in what is wanted; None where there is nothing to draw."""
        by_step = {t: [(t, c) for c in self.answered[t] if self._wants(c)] for t in self.wanted}
        places = [place for answers in by_step.values() for place in answers]
        if not places:
            return None
        by_client: dict[int, list[Answer]] = {}
        for place in places:
            by_client.setdefault(place[1], []).append(place)
        # All answers of one step have the same odds.
        one = sum(len(answers) * self.caught(answers[:1]) for answers in by_step.values())
        return Odds(
            answer=one / len(places),
            round=_mean([self.caught(answers) for answers in by_step.values() if answers]),
            client=_mean([self.caught(answers) for answers in by_client.values()]),
            server=_mean([self._server_caught(t) for t in self.wanted]),
        )

    def _server_caught(self, step: int) -> float:
        if step in self.single:
            return self.single_drawn / len(self.single)
        return self.long_drawn / len(self.long)

    def _wants(self, client: int) -> bool:
        return self._clients is None or client in self._clients


def steps_on_the_way(drawn: Drawn) -> int:
    """How many whole steps are computed again."""
    return sum(map(len, drawn.stretches))


def seconds(
    drawn: Drawn, by_step: Mapping[int, float], answered: Sequence[Collection[int]]
) -> float:
    """What the drawn steps and answers took when the run was made."""
    whole = sum(by_step[t] for steps in drawn.stretches for t in steps)
    return whole + sum(by_step[t] / len(answered[t]) for t, _ in drawn.answers)


def _stretches(steps: int, begins: Collection[int], wanted: Collection[int]) -> Iterator[range]:
    """From each beginning up to the last wanted step before the next one."""
    starts = sorted({0, *(b for b in begins if b < steps)})
    for start, end in zip(starts, [*starts[1:], steps], strict=True):
        if here := [t for t in range(start, end) if t in wanted]:
            yield range(start, here[-1] + 1)


def _missed(all_of_them: int, drawn: int, changed: int) -> float:
    """That none of the changed ones is among those drawn (hypergeometric)."""
    if drawn > all_of_them - changed:
        return 0.0 if changed and drawn else 1.0
    return prod((all_of_them - drawn - i) / (all_of_them - i) for i in range(changed))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
