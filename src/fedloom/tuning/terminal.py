"""The tables that `fedloom tune` ends with."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedloom.core.metrics import Metric, metric, words
from fedloom.durations import duration
from fedloom.tuning.result import Trial, Tuned, TuneResult


def best_table(result: TuneResult) -> Table:
    """The best settings of every method beside its defaults."""
    table = Table(title=f"Best of {result.trials} trials each, on validation rows")
    table.add_column("method", overflow="fold")
    table.add_column("best settings", overflow="fold")
    of = metric(result.methods[0].metric)
    name = "" if of.name == "accuracy" else f" {words(of.name)}"
    for head in (f"defaults{name}{of.unit}", f"best{name}{of.unit}", "CPU time"):
        table.add_column(head, justify="right", no_wrap=True)
    for tuned in result.methods:
        table.add_row(
            Text(tuned.label),
            Text(_settings(tuned.best)),
            _shown(tuned.default.score, of),
            _shown(tuned.score, of),
            duration(tuned.cpu_seconds),
        )
    return table


def trials_table(tuned: Tuned, rungs: list[int]) -> Table:
    """Every trial of a method: what it tried, and its score at each rung it reached."""
    table = Table(title=Text(f"Trials of {tuned.label}"))
    table.add_column("trial", justify="right")
    table.add_column("settings", overflow="fold")
    for rung in rungs:
        table.add_column(f"round {rung}", justify="right", no_wrap=True)
    further = sorted({seed for trial in tuned.trials for seed in trial.confirmed})
    for seed in further:
        table.add_column(f"seed {seed}", justify="right", no_wrap=True)
    for trial in tuned.trials:
        scores = [_shown(trial.scores.get(rung), metric(tuned.metric)) for rung in rungs]
        if trial.why:
            scores[len(trial.scores)] = "failed"
        with_seeds = [
            _shown(trial.confirmed[seed], metric(tuned.metric), "failed")
            if seed in trial.confirmed
            else "-"
            for seed in further
        ]
        table.add_row(
            str(trial.number),
            Text(_settings(trial)),
            *scores,
            *with_seeds,
            style="bold" if trial == tuned.best else "",
        )
    return table


def _settings(trial: Trial) -> str:
    written = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
    defaults = "as written" if not written else f"as written: {written}"
    return written if trial.number else defaults


def _shown(score: float | None, of: Metric, nothing: str = "-") -> str:
    return nothing if score is None else f"{of.factor * score:.2f}"
