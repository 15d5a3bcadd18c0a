"""Several methods under one budget: same data, partition, model, rounds and seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedloom.core.method import Method
from fedloom.engines import Engine
from fedloom.errors import BadInput
from fedloom.files import write_json
from fedloom.launch.start import Given, difference, engine_of, go_on, start
from fedloom.methods import parse_method
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.folder import RunPaths
from fedloom.runs.scores import Record
from fedloom.runs.watcher import Watcher

Watch = Callable[[str, int, int], Sequence[Watcher]]
"""(label, which run, of how many) -> watchers of that run."""


@dataclass(frozen=True)
class Row:
    """One method over all seeds."""

    label: str
    summaries: list[Record]

    def over_seeds(self, key: str) -> tuple[float, float]:
        """Mean and standard deviation over seeds (0 for a single one)."""
        values = [float(s[key]) for s in self.summaries]
        return fmean(values), stdev(values) if len(values) > 1 else 0.0

    @property
    def megabytes(self) -> float:
        """Sent per client over the run, in millions of bytes."""
        return fmean(s["bytes_up"] / s["clients"] / 1e6 for s in self.summaries)

    def as_record(self) -> Record:
        """For JSON."""
        accuracy, deviation = self.over_seeds("accuracy")
        return {
            "method": self.label,
            "accuracy": accuracy,
            "accuracy_std_over_seeds": deviation,
            "worst_decile": self.over_seeds("worst_decile")[0],
            "megabytes_up_per_client": self.megabytes,
            "seconds": self.over_seeds("seconds")[0],
            "runs": [s["run"] for s in self.summaries],
        }


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, in the order asked for."""

    rows: list[Row]

    def as_record(self) -> Record:
        """For JSON."""
        return {"methods": [row.as_record() for row in self.rows]}


def compare(
    methods: Sequence[str | Method],
    data: Any = "digits",
    *,
    seeds: Sequence[int] = (0, 1, 2),
    model: str | Model = "auto",
    watch: Watch | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Comparison:
    """Run every method with every seed; settings are the keys of `RunConfig`.

    With `out`, runs that ended in an earlier, interrupted comparison are not run again and one
    that stopped half-way is resumed.

    >>> found = compare(["local", "fedavg"], seeds=[0], rounds=1, clients=4, partition="iid")
    >>> [row.label for row in found.rows]
    ['local', 'fedavg']
    """
    if not methods or not seeds:
        raise BadInput("a comparison needs at least one method and one seed")
    rows: list[Row] = []
    for method in methods:
        if isinstance(method, str):
            parse_method(method)  # the last one misspelt should not cost the runs before it
    everything = [Given(method, data, model) for method in methods]
    base = everything[0].config(settings)
    with engine_of(base) as engine:
        for given in everything:
            row = Row(given.label, [])
            for seed in seeds:
                config = given.config({**settings, "seed": seed})
                config = config.changed(out=_folder(base.out, given.label, seed))
                experiment = replace(given, data=data).build(config)
                data = experiment.data  # decoded and divided once for all
                which = len(rows) * len(seeds) + len(row.summaries)
                watchers = watch(given.label, which, len(methods) * len(seeds)) if watch else ()
                row.summaries.append(_summary(experiment, engine, watchers, overwrite))
            rows.append(row)
    comparison = Comparison(rows)
    if base.out is not None:
        write_json(Path(base.out) / "comparison.json", comparison.as_record())
    return comparison


def _summary(
    experiment: Experiment, engine: Engine, watchers: Sequence[Watcher], overwrite: bool
) -> Record:
    """Of a new run, of one that is there, or of one that stopped and goes on."""
    out = experiment.config.out
    if out is None or overwrite or not RunPaths(out).config.exists():
        return start(experiment, engine, watchers, overwrite).summary
    if other := difference(experiment.config):
        raise BadInput(f"{out} holds {other}; give --overwrite or another --out")
    if RunPaths(out).summary.exists():
        ended: Record = json.loads(RunPaths(out).summary.read_text(encoding="utf-8"))
        return ended
    return go_on(experiment, engine, watchers).summary


def _folder(out: str | None, label: str, seed: int) -> str | None:
    """A readable folder for one run of a comparison."""
    if out is None:
        return None
    slug = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")
    return str(Path(out) / f"{slug}-seed{seed}")
