"""Scoring one client's model at a moment of a round; never changes a state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.adaptation import adapt, adapted_model, join
from fedloom.core.data import ClientData, Split
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.outputs import passes, rows_per_prediction
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.score import GLOBAL, PERSONAL, ClientScore, Moment, SplitName
from fedloom.core.site import Site, Visit
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State, place, place_state
from fedloom.errors import BadInput

FINAL = "final/"
"""Prefix of the slices that keep a client's adapted model after the last round."""


@dataclass(frozen=True)
class Ask:
    """What to measure at one client."""

    moments: tuple[Moment, ...]
    splits: tuple[SplitName, ...] = ("test",)
    model: Literal["personal", "global"] = "personal"
    shared: bool = False
    """The test rows are not the client's own but those of the shared test sets."""


def evaluate(visit: Visit, ask: Ask) -> tuple[ClientScore, ...]:
    """Every score that is asked for. Trains on copies where the moment needs it; keeps nothing."""
    scores: list[ClientScore] = []
    for moment in ask.moments:
        key = (*visit.down.plan.key, visit.cid, "evaluate", moment)
        with timed("evaluation"), rng_scope(*key), naming_hooks(f"at {visit.place}"):
            state = model_at(visit, moment, ask.model)
            scores += score_client(visit.program, visit.cid, visit.data, state, moment, ask)
    return tuple(scores)


def score_client(
    program: Program, cid: int, data: ClientData, state: State, moment: Moment, ask: Ask
) -> list[ClientScore]:
    """Scores of one state on the splits the client has, and of its single heads.

    On shared test sets: the mean over the sets, which all count alike.
    """
    scores: list[ClientScore] = []
    net = program.net(cid)
    for name in ask.splits:
        on_shared = ask.shared and name == "test"
        tests = data.shared_tests.values() if on_shared else [data.split(name)]
        rows = [split for split in tests if split is not None and len(split) > 0]
        if not rows:
            continue
        by_rows = [score_rows(program, net, split, state, ask.model) for split in rows]
        count = sum(len(split) for split in rows)
        scores += [
            ClientScore(moment, name, count, _means([one[model] for one in by_rows]), model)
            for model in by_rows[0]
        ]
    return scores


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in metrics) for name in metrics[0]}


def score_rows(
    program: Program, net: Net, split: Split, state: State, model: str = PERSONAL
) -> dict[str, dict[str, float]]:
    """Metrics of a state on rows, by model: the whole one, and the method's single heads."""
    outputs = predictions(program, net, split, state, model)
    return {name: program.task.scores(output, split.y) for name, output in outputs.items()}


@torch.no_grad()
def predictions(
    program: Program, net: Net, split: Split, state: State, model: str = PERSONAL
) -> dict[str, Tensor]:
    """What a state predicts for rows, by model: the whole one, and the method's single heads.

    A global model predicts as plain averaging does.
    """
    device = next(iter(state[METHOD].values())).device
    outputs: dict[str, list[Tensor]] = defaultdict(list)
    known = program.outputs.over(split, device)  # of stages that nobody trains
    for rows in passes(len(split), rows_per_prediction(net)):
        x = place(split.x(rows), device)
        known_rows = {stage: z[rows.to(device)] for stage, z in known.items()}
        with net.knowing(x, known_rows, program.frozen.are_in):
            for name, prediction in predicted(program.method, net, state, x, model).items():
                outputs[name].append(prediction.cpu())
    return {name: torch.cat(parts) for name, parts in outputs.items()}


def predicted(
    method: Method, net: Net, state: State, x: Tensor, model: str = PERSONAL
) -> dict[str, Tensor]:
    """The same for the inputs of one pass."""
    if model == GLOBAL:
        return {GLOBAL: Method.predict(method, net, state, x)}
    return {PERSONAL: method.predict(net, state, x), **method.views(net, state, x)}


def global_state(program: Program, server: State) -> State:
    """The global model: what is shared, and the initial values of the rest."""
    whole = program.frozen.put_back(server)
    return {METHOD: {**program.nets[0].tree(), **whole.get(METHOD, {})}}


def model_at(visit: Visit, moment: Moment, model: str = "personal") -> State:
    """The model of a moment, trained on copies where it needs training."""
    method = visit.program.method
    if model == "global":
        return place_state(global_state(visit.program, visit.down.state), visit.device)
    if moment == "final":
        own = visit.program.frozen.put_back(visit.own or {})
        if not (final := kept_final(own)):
            raise BadInput(f"client {visit.cid} has no final model; it has not been adapted yet")
        return place_state(final, visit.device)
    site = Site(visit)
    if moment == "adapted":
        (join if site.newcomer else adapt)(site)
        return adapted_model(site)
    if moment == "trained":
        method.local(site)
    return method.personalize(site)


def kept_final(own: State) -> State:
    """The adapted model a client keeps, if it has one."""
    return {k.removeprefix(FINAL): t for k, t in own.items() if k.startswith(FINAL)}
