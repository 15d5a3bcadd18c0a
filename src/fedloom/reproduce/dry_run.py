"""Two rounds of every cell of a table, on small generated data: does every setting work?

Nothing is learned about accuracy. Data is divided as configured, the network and the method are the
configured ones; clients, rows, batches and rounds are few, and the numbers that change no code path
(learning rates and the like) are the same everywhere, so that most cells of a table are equal to
another one and are played once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.data import FederatedData
from fedloom.expression import parse
from fedloom.launch.start import engine_of, start
from fedloom.methods import parse_method
from fedloom.reproduce.format import Cell, PaperTable
from fedloom.reproduce.small_data import NEWCOMERS, TRAIN, small_federation, smallest_side
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import DIVIDING, Experiment

Part = TypeVar("Part", bound=Term)

ROUNDS = 2
_REPEATED = ("epochs", "alternations")
"""How the fields of methods end that say how often something is done."""
_SAME_NUMBER = {"lr": 0.01, "momentum": 0.5, "weight_decay": 1e-4, "decay": 0.99, "clip": 10.0}
"""Numbers of which any will do, where they are set at all."""


@dataclass
class DryRuns:
    """What was played already, so that equal cells of all tables are played once."""

    every: bool = True
    """False: of cells that differ, only as many are played as bring each method with its protocol,
    and each network with its kind of data, at least once; the others are built."""
    _federations: dict[str, FederatedData] = field(default_factory=dict)
    _played: set[str] = field(default_factory=set)
    _parts: set[str] = field(default_factory=set)
    _built: set[tuple[str, int]] = field(default_factory=set)
    _sides: dict[str, int | None] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many different cells were played."""
        return len(self._played)

    def play(self, table: PaperTable) -> Iterator[str]:
        """Every cell of a table; a sentence for each that does not work."""
        for cell in table.cells():
            try:
                with TemporaryDirectory() as scratch:
                    self._play(cell.config, self._begin(table, cell, Path(scratch)))
            except Exception as e:  # whatever a method or network raises is what is looked for
                yield (
                    f"{table.path}, row {cell.row!r} in column {cell.column!r}:"
                    f" {type(e).__name__}: {e}"
                )

    def _begin(self, table: PaperTable, cell: Cell, scratch: Path) -> dict[str, Any]:
        """What a cell begins with: the small run of another cell, or drawn weights, also in place
        of a file of weights, which need not be at hand."""
        if cell.config.start is None:
            return {}
        if cell.begins_with is None:
            return {"start": None, "start_without": None}
        first, folder = table.cell(*cell.begins_with), str(scratch / "run")
        begin = self._begin(table, first, scratch / "before")
        small = shrunk(first.config).changed(**begin, out=folder)
        _run(_experiment(small, self._federation(first.config)))
        return {"start": folder}

    def _play(self, config: RunConfig, begin: Mapping[str, Any]) -> None:
        """One cell, unless one like it was played already; one that differs in the number of
        classes only is built, which is where a network or method would refuse them."""
        data, small = self._federation(config), shrunk(config)
        key = _key(small, data)
        if (key, data.classes) in self._built:
            return
        self._built.add((key, data.classes))
        experiment = _experiment(small.changed(**begin), data)
        parts = _parts(small, data)
        if key not in self._played and (self.every or not parts <= self._parts):
            self._played.add(key)
            self._parts |= parts
            _run(experiment)

    def _federation(self, config: RunConfig) -> FederatedData:
        side = self._side(config)
        key = json.dumps([side, *(getattr(config, name) for name in ("data", *DIVIDING))])
        if key not in self._federations:
            self._federations[key] = small_federation(config, side)
        return self._federations[key]

    def _side(self, config: RunConfig) -> int | None:
        key = json.dumps([config.data, config.image_size, config.encoder, config.model])
        if key not in self._sides:
            self._sides[key] = smallest_side(config)
        return self._sides[key]


def shrunk(config: RunConfig) -> RunConfig:
    """The settings of the small run."""
    same: dict[str, Any] = {k: v for k, v in _SAME_NUMBER.items() if getattr(config, k)}
    return config.changed(
        **same,
        rounds=ROUNDS,
        epochs=None if config.epochs is None else 1,
        steps=None if config.steps is None else 1,
        batch_size=TRAIN,
        clients=None,
        participation=1.0 if config.participation == 1 else 0.5,
        newcomers=min(config.newcomers, NEWCOMERS),
        eval_every=1,
        diagnose_every=ROUNDS,
    )


def _experiment(config: RunConfig, data: FederatedData) -> Experiment:
    return Experiment.build(config, with_single_epochs(parse_method(config.method)), data)


def _run(experiment: Experiment) -> None:
    with engine_of(experiment.config) as engine:
        start(experiment, engine)


def with_single_epochs(method: Method) -> Method:
    """The method with one epoch wherever its paper takes several."""
    return _single(replace(method, terms=tuple(map(_single, method.terms))))


def _single(part: Part) -> Part:
    """A method or term that repeats nothing."""
    names = [f.name for f in fields(part) if f.name.endswith(_REPEATED)]
    return replace(part, **{name: 1 for name in names if (getattr(part, name) or 0) > 1})


def _key(config: RunConfig, data: FederatedData) -> str:
    """What decides the code that a small run goes through."""
    settings = config.model_dump(exclude={"data", "method", "protocol", *DIVIDING})
    rows = [[len(split) > 0 for split in client] for client in data.partition.clients]
    maps = data.partition.label_maps is not None
    schema = [data.kind, data.shape, data.augment is not None, rows, maps]
    return json.dumps([schema, sorted(data.shared_tests), _code(config), settings], sort_keys=True)


def _parts(config: RunConfig, data: FederatedData) -> set[str]:
    """What is to be played at least once."""
    network = [config.model, config.encoder, data.kind, data.augment is not None]
    return {json.dumps(part) for part in (_code(config), network)}


def _code(config: RunConfig) -> list[list[str]]:
    return [_without_numbers(config.method), _without_numbers(config.protocol)]


def _without_numbers(expression: str) -> list[str]:
    """The calls of an expression, with 1 for every number but 0: how much of something there is
    decides no code path, whether there is any does.

    >>> _without_numbers("fedavg + proximal(mu=0.01)")
    ['fedavg', 'proximal(mu=1)']
    """
    return [str(replace(call, kwargs=_as_ones(call.kwargs))) for call in parse(expression)]


def _as_ones(arguments: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {k for k, v in arguments.items() if isinstance(v, int | float)}
    return {k: int(bool(v)) if k in numbers else v for k, v in arguments.items()}
