"""A newcomer joins a run that has ended: a model by the method's own joining rule, and what it is
worth beside training alone on the same rows.

Nothing of the run changes. The newcomer has the number after the last client of the run, so it
draws what a newcomer of that number would have drawn in the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.core.data import ClientData
from fedloom.core.evaluate import model_at, predictions
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.message import Plan
from fedloom.core.metrics import metric
from fedloom.core.program import Program
from fedloom.core.rng import generator, rng_scope
from fedloom.core.round import Round, initial_server, send
from fedloom.core.score import PERSONAL, Moment
from fedloom.core.site import CPU, Visit
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, plain_state
from fedloom.errors import BadInput
from fedloom.runs.client_models import card_of, finite, last_record, measured_again, plan_of
from fedloom.runs.newcomer_rows import NewcomerRows, Reading, newcomer_rows
from fedloom.serving.card import Joined, Scores
from fedloom.serving.model import PersonalModel

if TYPE_CHECKING:
    from fedloom.runs.result import Result

EPOCHS = 10
"""That a newcomer trains where neither the caller nor the run's protocol says how many; DBE's."""
DRAWS = 400
"""Samples of the test rows by which the interval of a gain is found."""
_SPLITS = ("test", "val")


@dataclass(frozen=True)
class Gain:
    """How much better the newcomer's model is than another, on the same test rows."""

    over: Literal["received", "alone"]
    """The model as it was received, or one of training alone."""
    metric: str
    value: float
    """In the metric's own unit; above 0 where the newcomer's model is better."""
    interval: tuple[float, float]
    """95 %, the test rows drawn again; NaN where a metric is not defined for most draws."""


@dataclass(frozen=True)
class Adapted:
    """A newcomer's model and what it scores."""

    model: PersonalModel
    epochs: int
    metric: str
    """The one by which the run is judged."""
    received: Scores
    """Split -> metric -> value, of the model as it was received, before any training."""
    adapted: Scores
    """Of `model`."""
    alone: Scores
    """Of a model that the newcomer trained alone: the run's network and first weights, the same
    rows and as many epochs."""
    gains: tuple[Gain, ...]
    """None where the newcomer has no test rows."""

    def __repr__(self) -> str:
        scores = (self.adapted, self.received, self.alone)
        values = [of.get("test", {}).get(self.metric) for of in scores]
        adapted, received, alone = ("-" if v is None else f"{v:.4f}" for v in values)
        return (
            f"Adapted({self.model.card.name}: {self.metric} {adapted}, as received {received},"
            f" alone {alone}, {self.epochs} epochs)"
        )

    def save(self, folder: str | Path) -> None:
        """Write the model with its card, as `PersonalModel.save`."""
        self.model.save(folder)

    def to_json(self) -> dict[str, Any]:
        """Everything but the model, in plain values."""
        return {
            "client": self.model.card.name,
            "training_rows": self.model.card.training_rows,
            "rows_scored": dict(self.model.card.rows_scored),
            "epochs": self.epochs,
            "metric": self.metric,
            "received": self.received,
            "adapted": self.adapted,
            "alone": self.alone,
            "gains": [
                {
                    "over": one.over,
                    "metric": one.metric,
                    "value": _plain(one.value),
                    "interval": [_plain(end) for end in one.interval],
                }
                for one in self.gains
            ],
        }


def adapt(
    run: Result, data: Any, epochs: int | None, lr: float | None, name: str | None, reading: Reading
) -> Adapted:
    """What `Result.adapt` says."""
    experiment = run.experiment
    if epochs is None:
        epochs = experiment.program.newcomer_epochs or EPOCHS
    if epochs < 1 or (lr is not None and lr <= 0):
        raise BadInput(
            f"a newcomer trains 1 or more epochs at a learning rate above 0, not {epochs} at {lr}"
        )
    rows = newcomer_rows(experiment, data, reading)
    client, cid = rows.data.client(0), len(experiment.data)
    plan = plan_of(experiment.program, last_record(run.records))
    member = _Newcomer(experiment.program.joined_after(epochs, lr), plan, cid, client)
    single = _Newcomer(experiment.training_alone().joined_after(epochs, lr), plan, cid, client)
    with one_thread():
        received = member.after("received", run.server)
        adapted = member.after("adapted", run.server)
        alone = single.after("adapted", initial_server(single.program))
    of = experiment.protocol.metric or experiment.program.task.primary
    gains: tuple[Gain, ...] = ()
    if client.test is not None:
        over_received = _gain(member, adapted, received, "received", of)
        gains = (over_received, _gain(member, adapted, alone, "alone", of))
    joined = Joined(
        epochs=epochs,
        federation_sha256=run.summary.state_sha256,
        received=member.scores(received),
        alone=single.scores(alone),
    )
    return Adapted(
        _model(run, member, adapted, rows, joined, name),
        epochs,
        of,
        joined.received,
        member.scores(adapted),
        joined.alone,
        gains,
    )


@dataclass(frozen=True)
class _Predicting:
    """A model and what it predicts for the newcomer's rows."""

    state: State
    predictions: Mapping[str, Tensor]
    """By split."""


@dataclass(frozen=True)
class _Newcomer:
    """A newcomer in front of what a server has."""

    program: Program
    plan: Plan
    cid: int
    data: ClientData

    def after(self, moment: Moment, server: State) -> _Predicting:
        """Its model at a moment, under the random streams of a newcomer that is scored in a run."""
        down = send(Round(self.program, self.plan, server), self.cid)
        visit = Visit(self.program, self.cid, self.data, down, None, CPU)
        key = (*self.plan.key, self.cid, "evaluate", moment)
        with rng_scope(*key), naming_hooks(f"at {visit.place}"):
            state = model_at(visit, moment)
            net = self.program.net(self.cid)
            predicted = {
                name: predictions(self.program, net, rows, state)[PERSONAL]
                for name in _SPLITS
                if (rows := self.data.split(name)) is not None
            }
        return _Predicting(state, predicted)

    def scores(self, of: _Predicting) -> Scores:
        """All metrics of its splits."""
        return {
            name: finite(self.program.task.scores(prediction, self.targets(name)))
            for name, prediction in of.predictions.items()
        }

    def targets(self, split: str) -> Tensor:
        rows = self.data.split(split)
        assert rows is not None
        return rows.y


def _gain(
    newcomer: _Newcomer,
    adapted: _Predicting,
    other: _Predicting,
    over: Literal["received", "alone"],
    of: str,
) -> Gain:
    task, y = newcomer.program.task, newcomer.targets("test")
    ours, theirs = adapted.predictions["test"], other.predictions["test"]
    task = replace(task, metrics=() if of in task.own else (of,))  # the others are not wanted here

    def better_by(rows: Tensor) -> float:
        values = [task.scores(prediction[rows], y[rows])[of] for prediction in (ours, theirs)]
        return metric(of).sign * (values[0] - values[1])

    gen = generator("rows of a gain", len(y))
    drawn = [better_by(torch.randint(len(y), (len(y),), generator=gen)) for _ in range(DRAWS)]
    usual = [value for value in drawn if not isnan(value)]
    interval = (nan, nan)
    if len(usual) > DRAWS / 2:
        low, high = np.quantile(usual, [0.025, 0.975]).tolist()
        interval = (low, high)
    return Gain(over, of, better_by(torch.arange(len(y))), interval)


def _model(
    run: Result,
    newcomer: _Newcomer,
    adapted: _Predicting,
    rows: NewcomerRows,
    joined: Joined,
    name: str | None,
) -> PersonalModel:
    state = plain_state(adapted.state)
    card = card_of(
        run.experiment,
        rows.data,
        state,
        cid=newcomer.cid,
        holder=0,
        name=name or rows.name,
        moment="adapted",
        number=newcomer.plan.t,
        columns=rows.columns,
        metrics=newcomer.scores(adapted),
        rows={split: len(newcomer.targets(split)) for split in adapted.predictions},
    )
    card = card.model_copy(update={"joined": joined})
    model = PersonalModel.of(newcomer.program, state, card, rows.data.source.words)
    return measured_again(model, rows.data, holder=0) if model.draws else model


def _plain(value: float) -> float | None:
    return None if isnan(value) else value
