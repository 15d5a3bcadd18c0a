"""Which runs may stand in one table: methods as rows, seeds within them, the rest equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedloom.report.runs import StoredRun, Unit

SAME = (
    *("data", "partition", "clients", "split", "shift", "augment", "normalize", "image_size"),
    *("newcomers", "model", "rounds", "participation", "protocol", "eval_every"),
)
"""Keys that must be equal for numbers to compare."""
_NO_MATTER = {
    *("method", "seed", "partition_seed", "out", "checkpoint_every", "memory", "ray_address"),
    *("min_clients", "diagnose", "diagnose_every"),
}


@dataclass(frozen=True)
class Row:
    """One method over its seeds."""

    label: str
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
        """Expression without defaults."""
        return self.runs[0].method


@dataclass(frozen=True)
class Group:
    """Runs that compare."""

    rows: list[Row]
    apart: list[str] = field(default_factory=list)
    """Why they do not compare with the first group."""
    repeated: list[str] = field(default_factory=list)
    """Folders of runs that are in the group already."""

    @property
    def first(self) -> StoredRun:
        """Any of them, for what they all share."""
        return self.rows[0].runs[0]

    @property
    def runs(self) -> list[StoredRun]:
        """All of them, by row."""
        return [run for row in self.rows for run in row.runs]

    def named(self, method: str) -> Row | None:
        """The row of a method as it comes, without settings of its own."""
        return next((row for row in self.rows if row.method == method), None)

    @property
    def same_partition(self) -> bool:
        """Do all runs have the same clients?"""
        return len({run.partition for run in self.runs}) == 1


def group(runs: Iterable[StoredRun]) -> list[Group]:
    """Runs sorted into groups that compare, in the order given.

    Methods compare if they ran on the same partitions; of one method, seeds may each have their
    own.
    """
    by_settings: dict[tuple[Any, ...], list[StoredRun]] = {}
    for run in runs:
        by_settings.setdefault(_settings(run), []).append(run)
    parts = [part for alike in by_settings.values() for part in _connected(_rows(alike))]
    groups: list[Group] = []
    for rows, repeated in parts:
        apart = _differences(groups[0].first, rows[0].runs[0]) if groups else []
        groups.append(Group(rows, apart, repeated))
    return groups


def _settings(run: StoredRun) -> tuple[Any, ...]:
    return (run.source, *(getattr(run.config, key) for key in SAME))


def _rows(runs: list[StoredRun]) -> tuple[list[Row], list[str]]:
    """Rows of methods; what differs beside the method is written behind its name."""
    own = [k for k in type(runs[0].config).model_fields if k not in {*SAME, *_NO_MATTER}]
    found: dict[tuple[Any, ...], dict[Unit, StoredRun]] = {}
    repeated: list[str] = []
    for run in runs:
        key = (run.config.method, *(getattr(run.config, k) for k in own))
        seeds = found.setdefault(key, {})
        if run.unit in seeds:
            repeated.append(str(run.paths.path))
        seeds.setdefault(run.unit, run)
    rows: list[Row] = []
    for seeds in found.values():
        here = sorted(seeds.values(), key=lambda run: run.config.seed)
        rows.append(Row(_label(here[0], _twins(here[0], found), own), here))
    return rows, repeated


def _twins(
    run: StoredRun, found: Mapping[tuple[Any, ...], Mapping[Unit, StoredRun]]
) -> list[StoredRun]:
    """One run of every row with the same method."""
    firsts = [next(iter(seeds.values())) for seeds in found.values()]
    return [first for first in firsts if first.method == run.method]


def _label(run: StoredRun, twins: list[StoredRun], own: list[str]) -> str:
    differ = [k for k in own if len({getattr(t.config, k) for t in twins}) > 1]
    said = ", ".join(f"{k} {getattr(run.config, k)}" for k in differ)
    return f"{run.method} ({said})" if said else run.method


def _connected(found: tuple[list[Row], list[str]]) -> list[tuple[list[Row], list[str]]]:
    """Rows that share a partition, directly or through others, stay together."""
    rows, repeated = found
    parts: list[tuple[set[str], list[Row]]] = []
    for row in rows:
        held = {run.partition for run in row.runs}
        joined = [row]
        for part in [p for p in parts if p[0] & held]:
            parts.remove(part)
            held, joined = held | part[0], [*part[1], *joined]
        parts.append((held, joined))
    order = {row.label: i for i, row in enumerate(rows)}
    ordered = [sorted(part, key=lambda row: order[row.label]) for _, part in parts]
    ordered.sort(key=lambda part: order[part[0].label])
    return [(part, repeated if i == 0 else []) for i, part in enumerate(ordered)]


def _differences(one: StoredRun, other: StoredRun) -> list[str]:
    """What keeps two runs apart, in words."""
    found = [
        f"{key.replace('_', ' ')} is {there}, not {here}"
        for key in SAME
        if (here := getattr(one.config, key)) != (there := getattr(other.config, key))
    ]
    if not found and one.source != other.source:
        found = [f"the data is another (fingerprint {other.source[:12]}, not {one.source[:12]})"]
    return found or [
        f"the clients hold other rows (partition {other.partition[:12]}, not {one.partition[:12]})"
    ]
