"""The fair table's rows, data sets and results, as the files of `reproduce/methods` hold them."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy import stats

HERE = Path(__file__).parent / "methods"
DATA = ("digits", "fashion_mnist", "har", "office_caltech10")
"""In the order of the columns; cheap ones first."""
FRACTIONS = 10
"""A run is scored so many times, after equal parts of its rounds."""


@dataclass(frozen=True)
class Row:
    """A method of the table."""

    name: str
    expression: str
    batchnorm: bool
    """It needs the data set's network with BatchNorm."""


@dataclass(frozen=True)
class Rows:
    """All methods, and what each of them may spend."""

    trials: int
    seeds: tuple[int, ...]
    methods: Mapping[str, Row]

    @classmethod
    def read(cls, folder: Path = HERE) -> Rows:
        """From methods.toml."""
        text = read_toml(folder / "methods.toml")
        plain = [Row(name, method, False) for name, method in text["rows"].items()]
        normalized = [Row(name, method, True) for name, method in text["with_batchnorm"].items()]
        methods = {row.name: row for row in [*plain, *normalized]}
        return cls(text["trials"], tuple(text["seeds"]), methods)


@dataclass(frozen=True)
class DataSet:
    """One column of the table: data, how it is divided, network and rounds."""

    name: str
    title: str
    short: str
    redrawn: bool
    """Every seed divides the rows anew; else all seeds have the same clients and rows."""
    batchnorm_model: str
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, folder: Path = HERE) -> DataSet:
        """From NAME.toml."""
        return cls(name=name, **read_toml(folder / f"{name}.toml"))

    def tuning_settings(self, row: Row) -> dict[str, Any]:
        """Of a row's trials: seed 0 and its division of the rows."""
        return self.run_settings(row, 0)

    def run_settings(self, row: Row, seed: int) -> dict[str, Any]:
        """Of a row's run with one seed."""
        model = self.batchnorm_model if row.batchnorm else self.settings["model"]
        division = seed if self.redrawn else 0
        return {**self.settings, "model": model, "seed": seed, "partition_seed": division}


@dataclass(frozen=True)
class SeedRun:
    """One run with the chosen settings."""

    accuracy: float
    worst_decile: float
    megabytes: float
    """Sent by one client."""
    cpu_seconds: float
    curve: list[float]
    """Accuracy of the model that clients receive, after each tenth of the rounds."""
    protocols: dict[str, float]
    """Protocol -> the same run's number under it, but for protocols that refuse the method."""
    digest: str
    """Of everything the run sent and kept, as `fedloom verify` checks it."""


@dataclass(frozen=True)
class Measured:
    """What is known of a row on a data set."""

    expression: str
    """As it was written."""
    chosen: str
    """With the best settings of its trials."""
    settings: dict[str, Any]
    validation: float | None
    """Score of the chosen settings on the validation rows of the tuning."""
    untuned: float | None
    """Score of the defaults there."""
    trials: int
    tuning_cpu_seconds: float
    seeds: dict[str, SeedRun] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Seed -> why its training broke down."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Measured:
        """As `as_json` wrote it."""
        runs = {seed: SeedRun(**run) for seed, run in record["seeds"].items()}
        return cls(**{**record, "seeds": runs})

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return asdict(self)

    def mean(self, number: str) -> float:
        """Over the seeds that came to their end; NaN where none did."""
        values = [getattr(run, number) for run in self.seeds.values()]
        return fmean(values) if values else math.nan

    def interval(self) -> float | None:
        """Half of the 95 % interval of the mean accuracy over seeds, by Student's law."""
        values = [run.accuracy for run in self.seeds.values()]
        if len(values) < 2:
            return None
        return float(stats.t.isf(0.025, len(values) - 1)) * stdev(values) / math.sqrt(len(values))

    def under(self, protocol: str) -> float | None:
        """Mean over seeds under a protocol; None where it refuses the method or a seed broke
        down."""
        values = [run.protocols.get(protocol) for run in self.seeds.values()]
        known = [value for value in values if value is not None]
        usable = bool(known) and len(known) == len(values) and not self.broken
        return fmean(known) if usable else None


Results = Mapping[str, Mapping[str, Measured]]
"""Data set -> row -> what was measured."""


def stored(data: str, folder: Path = HERE) -> dict[str, Measured]:
    """What was measured on a data set with the settings that its file has today; empty before that.

    Numbers of other rounds or another division must not stand in the same table.
    """
    path = folder / f"{data}.json"
    if not path.exists():
        return {}
    written = json.loads(path.read_text(encoding="utf-8"))
    if written["settings"] != DataSet.read(data, folder).settings:
        return {}
    return {name: Measured.from_json(record) for name, record in written["methods"].items()}


def complete(measured: Measured | None, rows: Rows) -> bool:
    """Has every seed been run?"""
    wanted = set(map(str, rows.seeds))
    return measured is not None and wanted <= measured.seeds.keys() | measured.broken.keys()


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
