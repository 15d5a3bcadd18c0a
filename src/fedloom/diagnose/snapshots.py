"""The models of a run as it stands: every client's before and after its next local training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.analysis.geometry import FewColumns
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.digest import RECEIPT
from fedloom.core.evaluate import global_state, kept_final, model_at, score_rows
from fedloom.core.message import Plan
from fedloom.core.net import METHOD, Net
from fedloom.core.outputs import passes, rows_per_prediction
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.round import Round, send
from fedloom.core.score import GLOBAL
from fedloom.core.site import Visit
from fedloom.core.tree import State, Tree, place, place_state
from fedloom.data import FederatedData
from fedloom.diagnose.layers import columns, outputs, representations
from fedloom.diagnose.per_client import Side
from fedloom.diagnose.samples import ROWS, Sample, Samples
from fedloom.engines import check_device
from fedloom.errors import BadInput
from fedloom.record import RoundRecord
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunPaths
from fedloom.runs.given import rebuilt
from fedloom.runs.journal import read_records
from fedloom.runs.result import Result
from fedloom.runs.stored import newest_states

CLIENTS = 8
MEMBERS = 18
"""Samples of an ensemble where the network draws one at a time; FedCR's number."""
SEEN_AT_LEAST = 1
"""Training rows that make a class a seen one."""


class ModelView:
    """One model and what it makes of samples, which is kept as long as the view."""

    def __init__(
        self,
        program: Program,
        net: Net,
        state: State,
        key: tuple[Any, ...],
        last: LastModel | None = None,
    ) -> None:
        self.program, self.net, self.state = program, net, state
        self._key = key
        self._device = next(iter(state[METHOD].values())).device
        self._last = LastModel() if last is None else last
        self._features_for_all = self._last.features_of(net, state[METHOD])
        self._features: dict[int, Features] = {}
        self._probabilities: dict[int, tuple[Sample, Tensor]] = {}

    @property
    def entries(self) -> dict[str, int]:
        """How many numbers each layer makes of an input, once `features` were asked for."""
        seen = [*self._features.values(), *self._features_for_all.values()]
        return seen[0].entries if seen else {}

    def features(self, sample: Sample) -> dict[str, Tensor]:
        """Layer -> float32 [n, d] in evaluation mode, without augmentation, in running order."""
        known = self._features_by_id(sample)
        if id(sample) not in known:
            known[id(sample)] = self._computed(sample)
        return known[id(sample)].layers

    def _features_by_id(self, sample: Sample) -> dict[int, Features]:
        return self._features_for_all if sample.is_for_all else self._features

    def _computed(self, sample: Sample) -> Features:
        parts: dict[str, list[Tensor]] = {}
        rows: dict[str, Tensor] = {}
        for x in self._parts(sample):
            for layer, z in outputs(self.net, self.state[METHOD], x).items():
                rows[layer] = z[0]
                parts.setdefault(layer, []).append(columns(z, layer))
        layers = {layer: torch.cat(z) for layer, z in parts.items()}
        entries = {layer: row.numel() for layer, row in rows.items()}
        stages = {
            layer: layers[layer].view(-1, *row.shape)
            for layer, row in rows.items()
            if self._is_whole_stage(layer, row, layers[layer])
        }
        return Features(sample, layers, entries, stages)

    def _is_whole_stage(self, layer: str, row: Tensor, kept: Tensor) -> bool:
        """Does a layer keep all that a stage makes of a row? If a stage draws, features are without
        that, and none does."""
        return (
            layer in self.net.reads
            and not any(map(self.net.draws, self.net.reads))
            and (row.shape, row.dtype) == (self.net.shape_of(layer), kept.dtype)
            and row.numel() == kept.shape[1]
        )

    def few_columns(self, sample: Sample, layer: str) -> FewColumns:
        """A layer's features, for what reads only distances and inner products of rows."""
        return self._last.few_columns(sample.name, layer, self.features(sample)[layer])

    @torch.no_grad()
    def probabilities(self, sample: Sample) -> Tensor:
        """[n, C] as the method predicts."""
        if id(sample) not in self._probabilities:
            with rng_scope(*self._key, sample.name):
                parts = map(self._predicted, self._parts(sample), self._known_outputs(sample))
                self._probabilities[id(sample)] = sample, torch.cat(list(parts))
        return self._probabilities[id(sample)][1]

    def _predicted(self, x: Tensor, known: dict[str, Tensor]) -> Tensor:
        own = self.state[METHOD]
        with self.net.knowing(x, known, lambda w: w is own):
            return self.program.method.predict(self.net, self.state, x).cpu()

    def _known_outputs(self, sample: Sample) -> Iterator[dict[str, Tensor]]:
        """Of each part of a sample, the stages' outputs that its features hold, if these were asked
        for: a prediction does not run those stages again."""
        features = self._features_by_id(sample).get(id(sample))
        known = features.stages if features else {}
        for rows in passes(len(sample), rows_per_prediction(self.net)):
            yield {stage: place(z[rows], self._device) for stage, z in known.items()}

    @property
    def stochastic(self) -> bool:
        """Does its prediction depend on chance?"""
        return any(map(self.net.draws, self.net.path_to(self.net.logits)))

    @torch.no_grad()
    def single_logits(self, sample: Sample) -> Tensor:
        """[n, C] with the means of stochastic layers."""
        w, last = self.state[METHOD], self.net.logits
        parts = [outputs(self.net, w, x)[last].cpu() for x in self._parts(sample)]
        return torch.cat(parts)

    @torch.no_grad()
    def ensemble_logits(self, sample: Sample) -> Tensor:
        """[S, n, C] with samples of stochastic layers."""
        w, last = self.state[METHOD], self.net.logits
        with rng_scope(*self._key, "ensemble", sample.name):
            parts = [self._members(w, last, x) for x in self._parts(sample)]
        return torch.cat(parts, 1)

    def _members(self, w: Mapping[str, Tensor], last: str, x: Tensor) -> Tensor:
        z = self.net(w, x, want=last)[last]
        if z.ndim == 3:  # [n, S, C]
            return z.transpose(0, 1).cpu()
        others = (self.net(w, x, want=last)[last] for _ in range(MEMBERS - 1))
        return torch.stack([z, *others]).cpu()

    def _parts(self, sample: Sample) -> Iterator[Tensor]:
        for x in torch.split(sample.inputs, rows_per_prediction(self.net)):
            yield place(x, self._device)


@dataclass(frozen=True, eq=False)
class Features:
    """What a model makes of a sample."""

    sample: Sample
    """Held so that nothing else gets its id."""
    layers: dict[str, Tensor]
    entries: dict[str, int]
    """How many numbers each layer makes of an input."""
    stages: dict[str, Tensor]
    """The layers that are all of a stage's output, in its shape."""


class LastModel:
    """What is known of the last model that was looked at. Clients often receive the same model or
    one extractor: what it makes of rows that all are looked at on is then computed once."""

    def __init__(self) -> None:
        self._net: Net | None = None
        self._weights: Tree = {}
        self._features: dict[int, Features] = {}
        self._narrow: dict[tuple[str, str], tuple[Tensor, FewColumns]] = {}

    def features_of(self, net: Net, weights: Tree) -> dict[int, Features]:
        """Of this model, by the ids of samples that are the same for every client; to be added to.
        Those that are known already if it is the last one."""
        if net is not self._net or not _equal(weights, self._weights):
            self._net, self._weights, self._features = net, weights, {}
        return self._features

    def few_columns(self, sample: str, layer: str, z: Tensor) -> FewColumns:
        """Features in few columns, computed if they are not the last ones of this layer."""
        key = sample, layer
        if key not in self._narrow or not torch.equal(self._narrow[key][0], z):
            self._narrow[key] = z, FewColumns.of(z)
        return self._narrow[key][1]


def _equal(one: Tree, other: Tree) -> bool:
    return one.keys() == other.keys() and all(torch.equal(z, other[key]) for key, z in one.items())


class ClientView:
    """One client of a run: its models and its rows."""

    def __init__(self, visit: Visit, samples: Samples, received: LastModel | None = None) -> None:
        """`received` is of the models as received, for all clients."""
        self.cid, self.data = visit.cid, visit.data
        self.classes: int = visit.data.classes
        self._visit, self._samples, self._received = visit, samples, received

    @cached_property
    def before(self) -> ModelView:
        """The model as received."""
        return self._view(lambda: model_at(self._visit, "received"), self._received)

    @cached_property
    def after(self) -> ModelView:
        """The model after the next local training, on a copy of the states."""
        return self._view(lambda: model_at(self._visit, "trained"))

    @cached_property
    def final(self) -> ModelView | None:
        """The adapted model that the client keeps, if the run has made one."""
        if not kept_final(self._visit.own or {}):
            return None
        return self._view(lambda: model_at(self._visit, "final"))

    def model(self, side: Side) -> ModelView:
        """Before or after local training."""
        return self.before if side == "before" else self.after

    @property
    def balanced(self) -> Sample:
        """Class-balanced test rows, the same for every client."""
        return self._samples.balanced

    @property
    def pool(self) -> Sample:
        """Test rows of all clients as they come."""
        return self._samples.pool

    @cached_property
    def test(self) -> Sample | None:
        """Its own test rows."""
        return self._samples.local(self.cid, "test")

    @cached_property
    def train(self) -> Sample | None:
        """Its own training rows."""
        return self._samples.local(self.cid, "train")

    @cached_property
    def val(self) -> Sample | None:
        """Its own validation rows."""
        return self._samples.local(self.cid, "val")

    @property
    def train_counts(self) -> Tensor:
        """Training rows of each class [C]."""
        return torch.bincount(self.data.train.y, minlength=self.classes)

    @property
    def seen_rows(self) -> Tensor:
        """Which balanced rows [n] are of classes that the client trains on."""
        return (self.train_counts >= SEEN_AT_LEAST)[self.balanced.y]

    @property
    def representations(self) -> list[str]:
        """The layers that the heads read."""
        return representations(self.before.net)

    def _view(self, make: Callable[[], State], last: LastModel | None = None) -> ModelView:
        visit = self._visit
        key = (*visit.down.plan.key, visit.cid)
        with rng_scope(*key):  # as in the round: this training is the one the client would do
            state = make()
        net = visit.program.net(visit.cid)
        return ModelView(visit.program, net, state, (*key, "diagnosis"), last)


def check_classes(experiment: Experiment) -> None:
    """Diagnostics look at rows of one class and of others."""
    if experiment.data.targets != "classes":
        raise BadInput(
            f"diagnostics look at the classes of rows, and with the task"
            f" {str(experiment.program.task)!r} rows have none; leave out diagnose"
        )


class Snapshots:
    """A run between two rounds, and some of its clients to look at.

    >>> from fedloom.launch.start import run
    >>> ended = run("fedavg", rounds=1, clients=3, partition="iid")
    >>> snapshots = Snapshots.of(ended, rows=100, clients=2)
    >>> features = snapshots.client(2).after.features(snapshots.samples.balanced)
    >>> snapshots.ids, {layer: tuple(z.shape) for layer, z in features.items()}
    ([0, 2], {'body.1': (100, 64), 'body': (100, 32), 'head': (100, 10)})
    """

    def __init__(
        self,
        experiment: Experiment,
        server: State,
        clients: Mapping[int, State],
        records: Sequence[RoundRecord],
        *,
        rows: int = ROWS,
        count: int = CLIENTS,
        samples: Samples | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """`records`: of the steps that led to these states."""
        self.experiment, self.program = experiment, experiment.program
        self._server, self._clients = server, clients
        self.warnings = tuple(warnings)
        if not isinstance(experiment.data, FederatedData):
            raise BadInput("the clients' data is at their sites; diagnose a run that has it here")
        check_classes(experiment)
        self.data: FederatedData = experiment.data
        if count < 1:
            raise BadInput(f"clients is {count}; a diagnosis needs at least one")
        self.round = _last_round(records)
        self._plan = Plan(self.round + 1, seed=self.program.seed, clients=self.program.clients)
        self.samples = samples or Samples(self.data, self.program.clients, rows)
        self.ids = _evenly_spaced(self.program.clients, count)
        if any(RECEIPT in clients.get(cid, {}) for cid in self.ids):
            raise BadInput(
                "this run's clients kept their states to themselves (engine flower); only a run of"
                " another engine can be diagnosed"
            )
        self._device = _device(experiment.config.device)
        self._received = LastModel()

    @classmethod
    def of(
        cls,
        run: str | Path | Result,
        *,
        rows: int = ROWS,
        clients: int = CLIENTS,
        **objects: Any,
    ) -> Snapshots:
        """Of a run folder's newest checkpoint, or of a run that ended in this process.

        `clients` is how many to look at. What the run was given as Python objects (`data`,
        `model`, `method`) must be given again.
        """
        if isinstance(run, Result):
            return cls(
                run.experiment, run.server, run.clients, run.records, rows=rows, count=clients
            )
        experiment, paths = rebuilt(run, "diagnose.Snapshots.of", **objects), RunPaths(run)
        states, warnings = newest_states(experiment, paths)
        # After a kill the journal may hold steps that the checkpoint does not.
        records = [r for r in read_records(paths.metrics, RoundRecord) if r.step < states.step]
        return cls(
            experiment,
            states.server,
            states.clients,
            records,
            rows=rows,
            count=clients,
            warnings=warnings,
        )

    def client(self, cid: int) -> ClientView:
        """One client's view; dropping it frees what it computed."""
        data: ClientData = self.data.client(cid)
        down = send(self._round, cid)
        visit = Visit(self.program, cid, data, down, self._clients.get(cid), self._device)
        return ClientView(visit, self.samples, self._received)

    def aggregated_accuracy(self) -> tuple[float | None, str | None]:
        """The global model's accuracy on the balanced rows, or why there is no such model."""
        if why := self.program.global_model_missing():
            return None, why
        rows = self.samples.balanced
        state = place_state(global_state(self.program, self._server), self._device)
        with rng_scope(*self._plan.key, "aggregated"):
            split = HeldRows(rows.inputs, rows.y)
            scores = score_rows(self.program, self.program.nets[0], split, state, GLOBAL)
        return scores[GLOBAL]["accuracy"], None

    @cached_property
    def _round(self) -> Round:
        return Round(self.program, self._plan, self._server)


def _device(name: str) -> torch.device:
    """The run's device, or the processor where this machine lacks it."""
    try:
        return check_device(name)
    except BadInput:
        return torch.device("cpu")


def _last_round(records: Sequence[RoundRecord]) -> int:
    rounds = [record.round for record in records if record.kind == "train"]
    if not rounds:
        raise BadInput("the run has no finished round to diagnose; let it go on first")
    return max(rounds)


def _evenly_spaced(clients: int, count: int) -> list[int]:
    """Ids from the first to the last."""
    most = min(clients, count)
    return [i * (clients - 1) // max(most - 1, 1) for i in range(most)]
