"""Which runs may stand in one table: methods as rows, seeds within them, the rest equal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedloom.core.metrics import Metric
from fedloom.launch.tables import Labelled
from fedloom.report.runs import StoredRun, Unit

SAME = (
    *(
        "data",
        "label",
        "client",
        "domain",
        "inputs",
        "partition",
        "clients",
        "split",
        "shift",
        "augment",
        "normalize",
        "image_size",
        "encoder",
        "task",
    ),
    *("newcomers", "model", "rounds", "participation", "protocol", "eval_every", "early_stop"),
)
"""Keys that must be equal for numbers to compare."""
_NO_MATTER = {
    *(
        "method",
        "title",
        "seed",
        "partition_seed",
        "out",
        "checkpoint_every",
        "memory",
        "ray_address",
    ),
    *("min_clients", "diagnose", "diagnose_every", "metrics"),
}


@dataclass(frozen=True)
class MethodRuns:
    """One method over its seeds: a row of the tables."""

    label: str
    """The method as it was written."""
    runs: list[StoredRun]

    @property
    def ended(self) -> list[StoredRun]:
        """Runs with a result."""
        return [run for run in self.runs if run.summary is not None]

    @property
    def shown(self) -> list[StoredRun]:
        """Runs the numbers are of: those that ended, or, as long as none did, all."""
        return self.ended or self.runs

    @cached_property
    def units(self) -> dict[Unit, StoredRun]:
        """Runs with a result, by what another method's run must share."""
        return {run.unit: run for run in self.ended}

    @property
    def method(self) -> str:
        """Without what is a default (`StoredRun.method`)."""
        return self.runs[0].method


@dataclass(frozen=True)
class RunGroup:
    """Runs that compare."""

    rows: list[MethodRuns]
    apart: list[str] = field(default_factory=list)
    """Why they do not compare with the first group."""
    repeated: list[str] = field(default_factory=list)
    """Folders of runs that are in the group already."""

    @property
    def name(self) -> str:
        """What a reader calls it."""
        config = self.first.config
        return f"{config.data}, {config.partition}, {self.first.clients} clients"

    @property
    def first(self) -> StoredRun:
        """Any of them, for what they all share."""
        return self.rows[0].runs[0]

    @property
    def metric(self) -> Metric:
        """What the numbers of all of them are."""
        return self.first.about

    @property
    def runs(self) -> list[StoredRun]:
        """All of them, by row."""
        return [run for row in self.rows for run in row.runs]

    def named(self, method: str) -> MethodRuns | None:
        """The row of a method as it comes, without settings of its own."""
        return next((row for row in self.rows if row.method == method), None)

    @property
    def same_partition(self) -> bool:
        """Do all runs have the same clients?"""
        return len({run.partition for run in self.runs}) == 1

    @property
    def results(self) -> list[Labelled]:
        """What `fedloom.launch.tables` makes tables of; methods without a result are not in it."""
        ended = [(row.label, [run.summary for run in row.runs if run.summary]) for row in self.rows]
        return [(label, summaries) for label, summaries in ended if summaries]


def group_runs(runs: Iterable[StoredRun]) -> list[RunGroup]:
    """Runs sorted into groups that compare, in the order given.

    Methods compare if they ran on the same partitions; of one method, seeds may each have their
    own.
    """
    by_settings: dict[tuple[Any, ...], list[StoredRun]] = {}
    for run in runs:
        by_settings.setdefault(_settings(run), []).append(run)
    groups: list[RunGroup] = []
    for alike in by_settings.values():
        rows, repeated = _rows(alike)
        for connected in _connected(rows):
            apart = _differences(groups[0].first, connected[0].runs[0]) if groups else []
            groups.append(RunGroup(connected, apart, repeated))
            repeated = []  # one group names them, for all
    return groups


def _settings(run: StoredRun) -> tuple[Any, ...]:
    return (run.source, *(getattr(run.config, key) for key in SAME))


def _rows(runs: list[StoredRun]) -> tuple[list[MethodRuns], list[str]]:
    """Rows of methods, and the folders of runs that are in one already."""
    own = [k for k in type(runs[0].config).model_fields if k not in {*SAME, *_NO_MATTER}]
    by_method: dict[tuple[Any, ...], dict[Unit, StoredRun]] = {}
    repeated: list[str] = []
    for run in runs:
        key = (run.config.method, *(getattr(run.config, k) for k in own))
        seeds = by_method.setdefault(key, {})
        if run.unit in seeds:
            repeated.append(str(run.paths.path))
        seeds.setdefault(run.unit, run)
    in_order = [
        sorted(seeds.values(), key=lambda run: run.config.seed) for seeds in by_method.values()
    ]
    firsts = [of_method[0] for of_method in in_order]
    return [MethodRuns(_label(part[0], firsts, own), part) for part in in_order], repeated


def _label(run: StoredRun, firsts: list[StoredRun], own: list[str]) -> str:
    """The method as it was written, and behind it what differs from other rows called so; of two
    that differ in what one of them does not have, only the other says so."""
    twins = [first.config for first in firsts if first.label == run.label]
    differ = [k for k in ("method", *own) if len({getattr(config, k) for config in twins}) > 1]
    values = {key: getattr(run.config, key) for key in differ}
    settings = ", ".join(f"{k} {v}" for k, v in values.items() if v is not None)
    return f"{run.label} ({settings})" if settings else run.label


def _connected(rows: list[MethodRuns]) -> list[list[MethodRuns]]:
    """Rows that share a partition, directly or through others, stay together."""
    parts: list[tuple[set[str], list[MethodRuns]]] = []
    for row in rows:
        partitions = {run.partition for run in row.runs}
        joined = [row]
        for part in [p for p in parts if p[0] & partitions]:
            parts.remove(part)
            partitions, joined = partitions | part[0], [*part[1], *joined]
        parts.append((partitions, joined))
    order = {row.label: i for i, row in enumerate(rows)}
    ordered = [sorted(part, key=lambda row: order[row.label]) for _, part in parts]
    return sorted(ordered, key=lambda part: order[part[0].label])


def _differences(one: StoredRun, other: StoredRun) -> list[str]:
    """What keeps two runs apart, in words."""
    differences = [
        f"{key.replace('_', ' ')} is {theirs}, not {ours}"
        for key in SAME
        if (ours := getattr(one.config, key)) != (theirs := getattr(other.config, key))
    ]
    if not differences and one.source != other.source:
        return [f"the data is another (fingerprint {other.source[:12]}, not {one.source[:12]})"]
    return differences or [
        f"the clients hold other rows (partition {other.partition[:12]}, not {one.partition[:12]})"
    ]
