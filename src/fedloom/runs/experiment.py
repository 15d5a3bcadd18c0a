"""From a configuration to things that run: data, net, method, protocol, schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.core.aggregation import parse_aggregation
from fedloom.core.compression import parse_compression
from fedloom.core.hostile import parse_hostile
from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.metrics import listed
from fedloom.core.net import Net
from fedloom.core.privacy import parse_privacy
from fedloom.core.program import Program
from fedloom.core.protocol import Protocol, parse_protocol
from fedloom.core.score import SplitName
from fedloom.core.secure.setting import parse_secure_aggregation
from fedloom.core.task import Classification, Targets, Task, parse_task, task_for
from fedloom.data import FederatedData, Partition, RemoteData, Source, federate, load
from fedloom.data.registry import registered
from fedloom.errors import BadInput
from fedloom.methods import describe, parse_method, training_settings, with_run_settings
from fedloom.models import ModelSpec, build_model
from fedloom.runs.config import RunConfig
from fedloom.runs.encoder import through_encoder
from fedloom.runs.initial_weights import begin_with

log = logging.getLogger("fedloom")

Model = ModelSpec | Sequence[ModelSpec]
"""One network for all, or several dealt to the clients in turn."""
OBJECT = "<python object>"
"""Stands in a configuration for what was handed over as an object and has no expression."""


@dataclass(frozen=True)
class Experiment:
    """Everything a runner needs; the same configuration always gives the same experiment."""

    config: RunConfig
    program: Program
    data: FederatedData | RemoteData
    protocol: Protocol
    """As settled for this method and data."""
    plans: list[Plan]
    model: Model | None = None
    """The network, where it was handed over as an object."""
    data_path: Path | None = None
    """Where the data lies, where the configuration's path does not say."""

    @property
    def splits(self) -> tuple[SplitName, ...]:
        """What is scored at the clients: the result's rows, and validation rows if there are any.

        Sites of a deployment know themselves which rows they have.
        """
        split = self.protocol.split
        has_val = isinstance(self.data, RemoteData) or self.data.partition.packed.has("val")
        return (split, "val") if has_val and split != "val" else (split,)

    @classmethod
    def build(
        cls,
        config: RunConfig,
        method: Method | None = None,
        data: Any = None,
        model: Model | None = None,
    ) -> Experiment:
        """Objects, where given, stand in for the configuration's expressions."""
        config = config.imported()
        filled = _method(config, method)
        divided = data if isinstance(data, RemoteData) else federated(config, data)
        clients = len(divided) - config.newcomers
        if clients < 1:
            raise BadInput(
                f"newcomers = {config.newcomers} leaves no client of {len(divided)} to train"
            )
        protocol = parse_protocol(config.protocol)
        task = _task(config, protocol, divided)
        name, nets = _nets(config, model, divided)
        start = _start(config, nets)
        program = Program(
            filled,
            nets,
            clients,
            config.seed,
            task,
            head_epochs=protocol.head_epochs,
            newcomer_epochs=protocol.newcomer_epochs,
            aggregation=parse_aggregation(config.aggregation),
            compression=parse_compression(config.compression),
            hostile=None if config.hostile is None else parse_hostile(config.hostile),
            secure=(
                None
                if config.secure_aggregation is None
                else parse_secure_aggregation(config.secure_aggregation)
            ),
            privacy=None if config.privacy is None else parse_privacy(config.privacy),
        )
        program.outputs.budget = int(config.memory * 2**20)
        _check_enough(program, config)
        protocol = protocol.settled(program, shared_tests=bool(divided.shared_tests))
        _check_data(protocol, divided, config.newcomers)
        resolved = config.changed(
            method=describe(filled, full=True),
            title=config.title or config.method,
            model=name,
            start=start,
            clients=len(divided),
            task="auto" if config.task == "auto" and task == Classification() else str(task),
            **training_settings(filled),
        )
        plans = _plans(program, config, protocol)
        path = Path(data) if isinstance(data, str | Path) else None
        return cls(resolved, program, divided, protocol, plans, model, path)

    def training_alone(self) -> Program:
        """The run's networks, as they begin before the method extends them, its task and how its
        clients train, for clients of which each trains alone."""
        _, nets = _nets(self.config, self.model, self.data)
        _start(self.config, nets)
        method = replace(parse_method("local"), opt=self.program.method.opt)
        return Program(method, nets, self.program.clients, self.config.seed, self.program.task)

    def judged_by(self, expression: str) -> Experiment:
        """The same training under another protocol, in no folder."""
        protocol = parse_protocol(expression)
        program = self.program.tested_after(protocol.head_epochs, protocol.newcomer_epochs)
        scored = (*program.task.own, *program.task.metrics)
        if protocol.metric is not None and protocol.metric not in scored:
            raise BadInput(
                f"protocol {expression!r} is of {protocol.metric}, which this run does not score;"
                f" set metrics = {protocol.metric!r}"
            )
        protocol = protocol.settled(program, shared_tests=bool(self.data.shared_tests))
        _check_data(protocol, self.data, self.config.newcomers)
        config = self.config.changed(protocol=expression, out=None)
        plans = _plans(program, config, protocol)
        return replace(self, config=config, program=program, protocol=protocol, plans=plans)


def _method(config: RunConfig, method: Method | None) -> Method:
    """The configured method, or the given one; the run's settings fill what it leaves open."""
    chosen = parse_method(config.method) if method is None else method
    return with_run_settings(chosen, config.model_dump())


def _task(config: RunConfig, protocol: Protocol, data: FederatedData | RemoteData) -> Task:
    """The configured task, or the one that the data's targets suit, with what follows from them."""
    task = task_for(data.targets) if config.task == "auto" else parse_task(config.task)
    if task.targets != data.targets:
        raise BadInput(
            f"task {task.name!r} learns {task.targets}, and the targets of the data are"
            f" {data.targets}; choose another task, or give data with such targets"
        )
    train = data.training_targets() if isinstance(data, FederatedData) else None
    metric = () if protocol.metric is None else (protocol.metric,)
    return task.fitted(train, data.classes).scoring([*listed(config.metrics), *metric])


def task_targets(config: RunConfig) -> Targets | None:
    """What the configured task takes for a row's target; None: by the data."""
    return None if config.task == "auto" else parse_task(config.task).targets


def federated(config: RunConfig, data: Any = None) -> FederatedData:
    """The configured data, or what `load` makes of an object in its place, divided over clients."""
    if data is None:
        data = registered(config.data)
        if isinstance(data, FederatedData):
            check_not_divided_again(data, config.model_dump())
    if isinstance(data, FederatedData):
        return data
    return dealt(config, undivided(config, data))


def undivided(config: RunConfig, data: Any) -> Source:
    """The rows of the configured data set, or of an object in its place."""
    source = load(
        data,
        normalize=config.normalization,
        image_size=config.image_size,
        label=config.label,
        client=config.client,
        domain=config.domain,
        inputs=config.inputs or (),
        targets=task_targets(config),
    )
    return through_encoder(source, config)


def dealt(config: RunConfig, source: Source) -> FederatedData:
    """Rows over clients, as configured."""
    partition: str | Partition = config.partition
    if config.partition.endswith(".json"):
        partition = Partition.load(Path(config.partition))
    return federate(
        source,
        partition,
        clients=config.clients,
        seed=config.partition_seed,
        split=config.split,
        shift=config.shift,
        augment=config.augment,
    )


DIVIDING = (
    *("label", "client", "domain", "inputs", "partition", "clients", "split", "shift"),
    *("augment", "normalize", "image_size", "encoder", "partition_seed"),
)
"""Keys that say how data is read and divided."""


def check_not_divided_again(data: FederatedData, settings: Mapping[str, Any]) -> None:
    """Refuse settings that data which is divided already would not follow."""
    for key in DIVIDING:
        default = RunConfig.model_fields[key].default
        value = settings.get(key, default)
        if value not in (default, len(data) if key == "clients" else default):
            raise BadInput(
                f"{key} = {value!r} would change nothing, as this data is divided already; "
                f"leave {key} out, or give the undivided data, its `source`"
            )


def _nets(
    config: RunConfig, model: Model | None, data: FederatedData | RemoteData
) -> tuple[str, list[Net]]:
    """The clients' networks, dealt in turn where there are several, and their expression."""
    auto = default_model(data.kind, data.shape)
    specs: list[Any] = [auto if w.strip() == "auto" else w.strip() for w in config.model.split("|")]
    name = " | ".join(specs)
    if model is not None:
        specs = list(model) if isinstance(model, Sequence) else [model]
        _warn_of_fixed_weights(specs)
    nets = [
        build_model(
            s,
            data.shape,
            data.classes,
            seed=config.seed,
            vocabulary=data.vocabulary,
            fewest=2 if data.targets == "classes" else 1,
            fields=data.fields,
        )
        for s in specs
    ]
    return name, nets


def _start(config: RunConfig, nets: Sequence[Net]) -> str | None:
    """Begin the networks with what the configuration names; its path and digest."""
    if config.start is not None:
        return begin_with(nets, config.start, config.start_without or "")
    if config.start_without is not None:
        raise BadInput(
            f"start_without = {config.start_without!r} leaves out tensors of start; set start too"
        )
    return None


def _warn_of_fixed_weights(specs: Sequence[ModelSpec]) -> None:
    """Somebody who averages over seeds should know that these do not decide the first weights."""
    for spec in specs:
        if isinstance(spec, nn.Module):
            _log_once(
                f"the model is one {type(spec).__name__} with weights of its own, so every seed"
                " begins with the same ones; give its class, or a function that makes one, to have"
                " them drawn anew for each seed"
            )


@cache
def _log_once(sentence: str) -> None:
    log.warning("%s", sentence)


def default_model(kind: str, shape: tuple[int, ...]) -> str:
    """The network a newcomer would expect for this kind of data."""
    if kind == "text":
        return "fasttext"
    if kind == "signal":
        return "har_cnn"
    if kind == "fields":
        return "fusion"
    large = kind == "image" and min(shape[-2:]) >= 28
    return "cnn4" if large else "mlp"


def _plans(program: Program, config: RunConfig, protocol: Protocol) -> list[Plan]:
    plans = program.schedule(config.rounds)
    if not protocol.full_last_round:
        return plans

    def last(plan: Plan) -> bool:
        return plan.kind == "train" and plan.t == config.rounds

    return [replace(p, cohort="all") if last(p) else p for p in plans]


def _check_enough(program: Program, config: RunConfig) -> None:
    asked = len(program.cohort(Plan(1), config.participation))
    if program.secure is not None:
        program.secure.check_cohort(asked)
    if config.min_clients > asked:
        raise BadInput(
            f"min_clients = {config.min_clients}, but a round asks only {asked} of"
            f" {program.clients} clients; lower it, or raise participation"
        )


def _check_data(protocol: Protocol, data: FederatedData | RemoteData, newcomers: int) -> None:
    if protocol.clients == "new" and not newcomers:
        raise BadInput("this protocol tests clients that never trained; set newcomers = 1 or more")
    if protocol.on == "shared" and not data.shared_tests:
        raise BadInput(
            "this protocol tests on shared test sets, but the split made none;"
            " use split = 'shared_test'"
        )
    if isinstance(data, RemoteData):
        return  # the sites know their rows
    needed = {protocol.split} if protocol.on == "clients" else set()
    if protocol.select == "best_val":
        needed.add("val")
    for split in sorted(needed):
        if not data.partition.packed.has(split):
            raise BadInput(
                f"no client has {split} rows, which this protocol scores;"
                f" choose a split with {split} rows, for instance 'merged(train=0.6, val=0.2)'"
            )
