"""Clients in blocks: small equal clients train side by side, and are scored side by side, where a
trial showed that it pays (`trials`).

The engine `vectorized` computes all its clients like this; the workers of `pool` and `ray` those
that come in one message. The outcome of every trial is logged, with the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch

from fedloom.core.block import has_rows, trains_together
from fedloom.core.client import client, clients_together
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.evaluate_together import can_be_scored_together, evaluate_together
from fedloom.core.message import Up
from fedloom.core.score import ClientScore
from fedloom.core.site import Visit
from fedloom.core.tree import State
from fedloom.core.witness import gradients_of
from fedloom.engines.bundle import SMALL_CLIENT, TOGETHER
from fedloom.engines.trials import Clock, Kind, Report, Trials, Work

log = logging.getLogger("fedloom")

SIZES = TOGETHER[::-1]
"""Clients in a block. Few sizes, because each needs a trial of its own; and larger blocks are no
faster, because their models do not stay in a processor's cache."""
MOST_NUMBERS = 2**26
"""In the models and inputs of a block (256 MB)."""

Answer = tuple[Up, State]
Scores = tuple[ClientScore, ...]


class Blocks:
    """Answers the visits of one run, in blocks where a trial allowed it. For any engine."""

    def __init__(self, clock: Clock = time.perf_counter, report: Report = log.info) -> None:
        """`report` gets a sentence for every trial, and for a block that failed later."""
        self.training = Trials(TRAINING, clock, report=report)
        self.scoring = Trials(SCORING, clock, report=report)
        self._together: dict[Hashable, bool] = {}
        """Kind of round, network, device -> may its clients train side by side?"""

    def answer(self, visits: Sequence[Visit], ask: Ask | None) -> list[Answer]:
        """`client` for every visit, in their order."""
        answers: dict[int, Answer] = {}
        for kind, places in _blocks(visits, [self._trained_alike(visit) for visit in visits]):
            block = self.training.answers(kind, [visits[i] for i in places], ask)
            answers |= zip(places, block, strict=True)
        return [answers[i] for i in range(len(visits))]

    def evaluate(self, visits: Sequence[Visit], ask: Ask) -> list[Scores]:
        """`evaluate` for every visit, in their order."""
        scores: dict[int, Scores] = {}
        for kind, places in _blocks(visits, [_scored_alike(visit, ask) for visit in visits]):
            block = self.scoring.answers(kind, [visits[i] for i in places], ask)
            scores |= zip(places, block, strict=True)
        return [scores[i] for i in range(len(visits))]

    def _trained_alike(self, visit: Visit) -> Hashable:
        """What shapes, strides and order of operations depend on, within a run; None: no block."""
        program, device = visit.program, visit.device
        of_round = visit.down.plan.kind, visit.cid % len(program.nets), device
        if of_round not in self._together:
            kind = visit.down.plan.kind
            self._together[of_round] = trains_together(program, visit.cid, kind, device)
        if not self._together[of_round] or not has_rows(visit.data):
            return None
        return *of_round, tuple(visit.down.state), len(visit.data.train)


def _scored_alike(visit: Visit, ask: Ask) -> Hashable:
    """The same of what is asked of a client's model, where passes over its rows are small."""
    if not can_be_scored_together(visit.program, ask, visit.device):
        return None
    sizes = tuple(len(visit.data.split(name) or ()) for name in ask.splits)
    if not 0 < sum(sizes) < SMALL_CLIENT:
        return None
    return visit.cid % len(visit.program.nets), ask, sizes


def _blocks(
    visits: Sequence[Visit], alike: Sequence[Hashable]
) -> Iterator[tuple[Kind | None, list[int]]]:
    """Places of visits of one kind, in blocks of one of the sizes; kind None: the rest."""
    groups: dict[Hashable, list[int]] = {}
    for i, common in enumerate(alike):
        groups.setdefault(common, []).append(i)
    rest = groups.pop(None, [])
    for common, group in groups.items():
        places = group
        room = MOST_NUMBERS // _numbers(visits[places[0]])
        for size in (size for size in SIZES if size <= room):
            while len(places) >= size:
                yield (common, size), places[:size]
                places = places[size:]
        rest += places
    if rest:
        yield None, rest


def _numbers(visit: Visit) -> int:
    """In one client's model and inputs."""
    net = visit.program.net(visit.cid)
    model = sum(v.numel() for v in net.initial.values())
    return model + len(visit.data.train) * torch.Size(net.shape).numel()


# ------------------------------------------------------------------ the two kinds of work


def _same_answers(a: Answer, b: Answer) -> bool:
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


def _same_scores(a: Scores, b: Scores) -> bool:
    return repr(a) == repr(b)  # also where a number is none


def _named(visits: Sequence[Visit]) -> str:
    return f"{len(visits)} clients of {len(visits[0].data.train)} rows"


TRAINING = Work(client, clients_together, _same_answers, _named, inside=gradients_of)
"""Of steps so small that weights hardly move, answers agree where gradients do not."""
SCORING = Work(
    evaluate, evaluate_together, _same_scores, lambda visits: f"scores of {_named(visits)}"
)
