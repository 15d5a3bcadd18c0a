"""Scores of several small clients at once: the first stages of the network whose tensors are the
same in all their models run over the rows of all of them, what is behind client by client.

Of a model that all clients hold that is the whole network, of models with a head of their own the
body. Whether the bits are those of the clients one by one is no promise: `engines.trials` compares
before it trusts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor, nn

from fedloom.core.data import Split, inputs_side_by_side
from fedloom.core.evaluate import Ask, model_at, predicted
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.outputs import passes, rows_per_prediction
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.score import ClientScore, Moment
from fedloom.core.site import Visit
from fedloom.core.stopwatch import timed
from fedloom.core.tree import State, Tree, place

UNTRAINED = {"received", "final"}
"""Moments whose models are there, and not trained first."""
ROW_BY_ROW = {
    *(nn.Sequential, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU),
    *(nn.Linear, nn.Conv2d, nn.MaxPool2d),
}
"""Layers in which a row's place in a pass tells nothing, or tells it in so many numbers that a
trial sees it; of the others some have functions as `batched_layers` describes them."""


def can_be_scored_together(program: Program, ask: Ask, device: torch.device) -> bool:
    """May clients with equally many rows be scored at once?"""
    return (
        UNTRAINED.issuperset(ask.moments)
        and not ask.shared
        and device.type == "cpu"
        and not program.outputs.stages  # their outputs are kept from round to round
    )


def evaluate_together(
    visits: Sequence[Visit], ask: Ask, watch: Callable[[], None] = lambda: None
) -> list[tuple[ClientScore, ...]]:
    """`evaluate` of clients that have the same network, and equally many rows in every split.

    `watch` is called before the rows of a split are passed, and may raise.
    """
    scores: list[list[ClientScore]] = [[] for _ in visits]
    for moment in ask.moments:
        with timed("evaluation"):
            states = [_model_at(visit, moment, ask) for visit in visits]
            for name in ask.splits:
                splits = [split for visit in visits if (split := visit.data.split(name))]
                if not splits:
                    continue
                watch()
                outputs = _predictions(visits[0], splits, states, ask.model)
                for own, split, by_model in zip(scores, splits, outputs, strict=True):
                    measure, y = visits[0].program.task.scores, split.y
                    own += [
                        ClientScore(moment, name, len(split), measure(prediction, y), model)
                        for model, prediction in by_model.items()
                    ]
    return [tuple(own) for own in scores]


def _model_at(visit: Visit, moment: Moment, ask: Ask) -> State:
    key = (*visit.down.plan.key, visit.cid, "evaluate", moment)
    with rng_scope(*key), naming_hooks(f"at {visit.place}"):
        return model_at(visit, moment, ask.model)


@torch.no_grad()
def _predictions(
    like: Visit, splits: Sequence[Split], states: Sequence[State], model: str
) -> list[dict[str, Tensor]]:
    """`predictions` of every client."""
    method, net = like.program.method, like.program.net(like.cid)
    x = place(inputs_side_by_side(splits).flatten(0, 1), like.device)
    models = [state[METHOD] for state in states]
    path = net.path_to(net.logits)
    stages = list(takewhile(lambda stage: _same_in_all(net, stage, models), path))
    outputs = _outputs(net, models[0], stages, x)
    keys = [key for key in net.keys if stage_of(key) in stages]
    rows, predictions = len(splits[0]), []
    for i, state in enumerate(states):
        own, known = slice(i * rows, (i + 1) * rows), models[i]

        def are_of(w: Tree, known: Tree = known) -> bool:
            return w is known or all(w.get(key) is known[key] for key in keys)

        x_own = x[own]
        with net.knowing(x_own, {stage: z[own] for stage, z in outputs.items()}, are_of):
            predictions.append(predicted(method, net, state, x_own, model))
    return predictions


def _same_in_all(net: Net, stage: str, models: Sequence[Tree]) -> bool:
    """Does a stage give the same for the same row, whichever of the models it is of?"""
    if any(type(layer) not in ROW_BY_ROW for layer in net.get_submodule(stage).modules()):
        return False
    keys = [key for key in net.keys if stage_of(key) == stage]
    first = models[0]
    return all(
        key in model and torch.equal(model[key], first[key]) for model in models for key in keys
    )


def _outputs(net: Net, w: Tree, stages: Sequence[str], x: Tensor) -> Mapping[str, Tensor]:
    """Of these first stages, for all rows."""
    parts: dict[str, list[Tensor]] = {stage: [] for stage in stages}
    for rows in passes(len(x), rows_per_prediction(net)):
        if stages:
            out = net(w, x[rows], want=stages[-1])
            for stage in stages:
                parts[stage].append(out[stage])
    return {stage: torch.cat(chunks) for stage, chunks in parts.items()}
