"""Several methods under one budget: same data, partition, model, rounds and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedloom.core.method import Method
from fedloom.core.metrics import Metric, metric, words
from fedloom.data import FederatedData
from fedloom.errors import BadInput
from fedloom.files import file_name, write_json
from fedloom.launch import forking, tables
from fedloom.launch.notebook import as_html
from fedloom.launch.progress import Bar, python_bar
from fedloom.launch.side_by_side import Heard, SideBySide
from fedloom.launch.start import check_policy, complete, engine_of, with_settings
from fedloom.methods import parse_method
from fedloom.record import Summary
from fedloom.runs.config import RunConfig, RunSettings
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.folder import RunPaths
from fedloom.runs.given import Given
from fedloom.runs.watcher import Watcher

if TYPE_CHECKING:
    from pandas import DataFrame

Watch = Callable[[str, int], Sequence[Watcher]]
"""(label, how many runs are over) -> watchers of the next run."""
START_SECONDS = 6.0
"""What two processes that each import torch for themselves take for it, on two cores."""


@dataclass(frozen=True)
class Row:
    """One method over all seeds."""

    label: str
    summaries: list[Summary]

    @property
    def accuracies(self) -> list[float]:
        """One for each seed."""
        return [summary.value for summary in self.summaries]

    @property
    def metric(self) -> Metric:
        """What the numbers are."""
        return metric(self.summaries[0].metric)

    @property
    def accuracy(self) -> float:
        """The number of the runs, mean over seeds; of most runs it is an accuracy."""
        return self._mean(self.metric.name)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; a single one has none."""
        number = tables.over_seeds(self.summaries, self.metric.name)
        return None if number is None else number.std

    def _mean(self, key: str) -> float:
        number = tables.over_seeds(self.summaries, key)
        return math.nan if number is None else number.mean

    def as_json(self) -> dict[str, Any]:
        """In JSON's types: means over seeds, and the values of every seed."""
        return {
            "method": self.label,
            self.metric.name: self.accuracy,
            f"{self.metric.name}_std_over_seeds": self.deviation,
            "worst_decile": self._mean("worst_decile"),
            "megabytes_up_per_client": self._mean("megabytes_up_per_client"),
            "seconds": self._mean("seconds"),
            "seeds": [
                {
                    "seed": summary.seed,
                    summary.metric: summary.value,
                    "worst_decile": summary.worst_decile,
                    "newcomers": summary.newcomers and summary.newcomers.value,
                    "seconds": summary.seconds,
                    "state_sha256": summary.state_sha256,
                    "stopped": summary.stopped,
                    "run": summary.run,
                }
                for summary in self.summaries
            ],
        }


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, in the order asked for."""

    rows: list[Row]

    @property
    def methods(self) -> list[tuple[str, Sequence[Summary]]]:
        """Labels with the summaries of their seeds."""
        return [(row.label, row.summaries) for row in self.rows]

    def to_pandas(self) -> DataFrame:
        """A row for every method and seed."""
        return tables.per_run(self.methods)

    def to_csv(self) -> str:
        """A line for every method: each seed's value, means and deviations."""
        return tables.to_csv(self.methods)

    def to_latex(self) -> str:
        """A table for a paper, the best method in bold."""
        return tables.to_latex(self.methods)

    def as_json(self) -> dict[str, Any]:
        """In JSON's types, as `comparison.json` holds it."""
        return {"methods": [row.as_json() for row in self.rows]}

    def __repr__(self) -> str:
        lines = []
        for row in self.rows:
            number = tables.OverSeeds(row.accuracy, row.deviation).shown(row.metric)
            name = "" if row.metric.name == "accuracy" else f"{words(row.metric.name)} "
            lines.append(f"{row.label}: {name}{number}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The table of the terminal, for notebooks."""
        from fedloom.launch.terminal import comparison_table

        return as_html(comparison_table(self))


@with_settings
def compare(
    methods: Sequence[str | Method],
    data: Any = "digits",
    *,
    seeds: Sequence[int] = (0, 1, 2),
    model: str | Model = "auto",
    watch: Watch | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    policy: str | Path | None = None,
    **settings: Unpack[RunSettings],
) -> Comparison:
    """Run every method with every seed; settings are the keys of `RunConfig`.

    With `out`, runs that ended in an earlier, interrupted comparison are not run again and one
    that stopped half-way is resumed. With `workers`, as many runs go side by side (on other
    systems than Linux only where the first of them took long enough for that to be quicker); their
    numbers do not change. `watch` gives watchers to every run, which then go one after another.
    `policy` is a `site.toml`: where its rules refuse a method for any client, nothing is run.

    >>> comparison = compare(["local", "fedavg"], seeds=[0], rounds=1, clients=4, partition="iid")
    >>> [row.label for row in comparison.rows]
    ['local', 'fedavg']
    """
    if not methods or not seeds:
        raise BadInput("a comparison needs at least one method and one seed")
    if "seed" in settings:
        raise BadInput("a comparison takes seeds=[0, 1, ...], not seed")
    everything = [Given(method, data, model) for method in methods]
    base = everything[0].config(settings).imported()
    check_methods(everything)
    at_a_time = 1 if watch else _runs_at_a_time(everything, settings)
    if at_a_time > 1:
        forking.begin()
    for given in everything:  # what the protocol or the network refuses should not wait either
        experiment = replace(given, data=data).build(given.config(settings))
        check_policy(experiment, policy)
        data = experiment.data  # decoded and divided once for all
    runs = [
        (given, given.config({**settings, "seed": seed, "out": _folder(base.out, given, seed)}))
        for given in everything
        for seed in seeds
    ]
    summaries: list[Summary] = []
    with engine_of(base) as engine, python_bar(progress, len(runs)) as bar:
        for given, config in runs:
            over = len(summaries)
            configs = [config for _, config in runs[over:]]
            due = len(configs) if overwrite else sum(not _has_ended(c) for c in configs)
            if _worth_starting(min(at_a_time, due), due, summaries):
                bar.over = over
                summaries += _side_by_side(configs, data, at_a_time, bar, overwrite)
                break
            watchers = [
                *(watch(given.label, over) if watch else ()),
                bar.watcher(given.label, over),
            ]
            experiment = replace(given, data=data).build(config)
            summaries.append(complete(experiment, engine, watchers, overwrite))
    rows = [
        Row(given.label, summaries[i * len(seeds) : (i + 1) * len(seeds)])
        for i, given in enumerate(everything)
    ]
    comparison = Comparison(rows)
    if base.out is not None:
        write_json(Path(base.out) / "comparison.json", comparison.as_json())
    return comparison


def check_methods(everything: Sequence[Given]) -> None:
    """The last method misspelt, or named twice, should not cost the runs before it."""
    labels: set[str] = set()
    folders: set[str] = set()
    for given in everything:
        if isinstance(given.method, str):
            parse_method(given.method)
        if given.label in labels:
            raise BadInput(f"{given.label!r} is compared with itself; name it once")
        labels.add(given.label)
        folders.add(file_name(given.label))
    if len(folders) < len(labels):
        raise BadInput(f"two of {', '.join(sorted(labels))} would share a folder; rename one")


def _folder(out: str | None, given: Given, seed: int) -> str | None:
    """A readable folder for one run of a comparison."""
    return None if out is None else str(Path(out) / f"{file_name(given.label)}-seed{seed}")


# ------------------------------------------------------------------ runs side by side


def _runs_at_a_time(everything: Sequence[Given], settings: RunSettings) -> int:
    """As many as the `workers` of an engine that has none of its own; 1 where nobody said so, or
    where a method or the model is an object, which other processes may not know."""
    known = all(isinstance(x, str) for given in everything for x in (given.method, given.model))
    asked = "workers" in settings and known
    return everything[0].config(settings).runs_at_a_time if asked else 1


def _has_ended(config: RunConfig) -> bool:
    """In an earlier command."""
    return config.out is not None and RunPaths(config.out).summary.exists()


def _worth_starting(at_a_time: int, due: int, ended: Sequence[Summary]) -> bool:
    """Is the time that processes save more than what they need to start?"""
    if at_a_time < 2 or forking.AT_ONCE:
        return at_a_time > 1
    return bool(ended) and ended[-1].seconds * due * (1 - 1 / at_a_time) > START_SECONDS


def _side_by_side(
    configs: Sequence[RunConfig],
    data: FederatedData,
    workers: int,
    bar: Bar,
    overwrite: bool,
) -> list[Summary]:
    """Summaries of runs in processes of their own."""
    lines = [bar.line(config.method) for config in configs]
    summaries: dict[int, Summary] = {}

    def hear(heard: Heard) -> None:
        lines[heard.place].reached(heard.done, heard.steps, heard.headline)

    work = _completed_anew if overwrite else _completed
    with SideBySide(work, data, None, min(workers, len(configs)), hear) as processes:
        for place, summary in processes.outcomes(configs):
            lines[place].over()
            summaries[place] = summary
    return [summaries[place] for place in range(len(configs))]


def _completed(
    config: RunConfig,
    data: FederatedData,
    model: Model | None,
    watchers: Sequence[Watcher],
    overwrite: bool = False,
) -> Summary:
    """One run, in another process."""
    experiment = Experiment.build(config, None, data, model)
    with engine_of(config) as engine:
        return complete(experiment, engine, watchers, overwrite)


_completed_anew = partial(_completed, overwrite=True)
