"""Two rounds of every cell of a table, on small generated data: does every setting work?

Nothing is learned about accuracy. Data is divided as configured, the network and the method are the
configured ones; clients, rows, batches and rounds are few, and the numbers that change no code path
(learning rates and the like) are the same everywhere, so that most cells of a table are equal to
another one and are played once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedloom.data import FederatedData
from fedloom.launch.start import engine_of, start
from fedloom.reproduce.format import Cell, PaperTable
from fedloom.reproduce.small_data import CLIENTS, small_federation, smallest_side
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import DIVIDING, Experiment

ROUNDS = 2
_BATCH = 4
_STEPS = 2
_SAME_NUMBER = {"lr": 0.01, "weight_decay": 1e-4, "decay": 0.99, "clip": 10.0}
"""Numbers of which any will do, where they are set at all."""


@dataclass
class DryRuns:
    """What was played already, so that equal cells of all tables are played once."""

    _federations: dict[str, FederatedData] = field(default_factory=dict)
    _played: set[str] = field(default_factory=set)
    _sides: dict[str, int | None] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many different cells were played."""
        return len(self._played)

    def play(self, table: PaperTable) -> Iterator[str]:
        """Every cell of a table; a sentence for each that does not work."""
        for cell in table.cells():
            try:
                self._play(cell)
            except Exception as e:  # whatever a method or network raises is what is looked for
                yield (
                    f"{table.path}, row {cell.row!r} in column {cell.column!r}:"
                    f" {type(e).__name__}: {e}"
                )

    def _play(self, cell: Cell) -> None:
        data = self._federation(cell.config)
        config = shrunk(cell.config)
        key = _key(config, data)
        if key in self._played:
            return
        self._played.add(key)
        with engine_of(config) as engine:
            start(Experiment.build(config, None, data), engine)

    def _federation(self, config: RunConfig) -> FederatedData:
        side = self._side(config)
        key = json.dumps([side, *(getattr(config, name) for name in ("data", *DIVIDING))])
        if key not in self._federations:
            self._federations[key] = small_federation(config, side)
        return self._federations[key]

    def _side(self, config: RunConfig) -> int | None:
        key = json.dumps([config.data, config.image_size, config.model])
        if key not in self._sides:
            self._sides[key] = smallest_side(config)
        return self._sides[key]


def shrunk(config: RunConfig) -> RunConfig:
    """The settings of the small run."""
    same = {key: value for key, value in _SAME_NUMBER.items() if getattr(config, key)}
    begins = getattr(config, "start", None)
    if begins is not None and not Path(begins).exists():
        same["start"] = None  # the run it begins with is not at hand
    return config.changed(
        **same,
        rounds=ROUNDS,
        epochs=None if config.epochs is None else 1,
        steps=None if config.steps is None else min(config.steps, _STEPS),
        batch_size=_BATCH,
        clients=CLIENTS,
        newcomers=min(config.newcomers, 1),
        eval_every=1,
        diagnose_every=ROUNDS,
    )


def _key(config: RunConfig, data: FederatedData) -> str:
    """What decides the code that a small run goes through."""
    settings = config.model_dump(exclude={"data", *DIVIDING})
    rows = [[len(split) > 0 for split in client] for client in data.partition.clients]
    maps = data.partition.label_maps is not None
    schema = [data.kind, data.shape, data.classes, data.augment is not None, rows, maps]
    return json.dumps([schema, sorted(data.shared_tests), settings], sort_keys=True)
