"""What a tuning found: the best settings of every method, and the trials behind them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from fedloom.core.metrics import metric, words
from fedloom.launch.notebook import as_html
from fedloom.runs.config import RunConfig
from fedloom.tuning.command import compare_command, run_command


@dataclass(frozen=True)
class Trial:
    """One point of a method's hyper-parameters, and how far it came."""

    number: int
    """0 is the method as it was written, with the caller's learning rate."""
    expression: str
    settings: Mapping[str, Any]
    """What was tuned, by name: `lr`, `proximal.mu`."""
    scores: Mapping[int, float] = field(default_factory=dict)
    """Rounds -> score on validation rows after so many, one for each rung it reached."""
    why: str = ""
    """Why its training broke down; empty: it did not."""
    cpu_seconds: float = 0.0
    ended: bool = False
    """It has run to the end, was not good enough to go on, or broke down."""
    confirmed: Mapping[int, float | None] = field(default_factory=dict)
    """Further seed -> score of the whole run with it; None: its training broke down there."""

    @property
    def rounds(self) -> int:
        """Rounds of the last rung it reached."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float | None:
        """On validation rows at the last rung it reached, the mean over seeds where it was trained
        with further ones and did not break down; None: its training broke down."""
        if self.why or not self.scores:
            return None
        further = [score for score in self.confirmed.values() if score is not None]
        return mean([self.scores[self.rounds], *further])

    def judged_by(self, seeds: Container[int]) -> Trial:
        """The same, with these further seeds only: a folder may hold others."""
        kept = {seed: score for seed, score in self.confirmed.items() if seed in seeds}
        return replace(self, confirmed=kept)

    @property
    def breakdowns(self) -> int:
        """With how many of the further seeds its training broke down."""
        return sum(score is None for score in self.confirmed.values())

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "number": self.number,
            "method": self.expression,
            "settings": dict(self.settings),
            "score": self.score,
            "rounds": self.rounds,
            "scores": {str(rounds): score for rounds, score in sorted(self.scores.items())},
            "further_seeds": {str(seed): score for seed, score in sorted(self.confirmed.items())},
            "why": self.why,
            "cpu_seconds": round(self.cpu_seconds, 3),
        }


@dataclass(frozen=True)
class Tuned:
    """One method: its trials, in the order of their numbers."""

    label: str
    """The method as it was written."""
    trials: list[Trial]
    ranges: Mapping[str, str]
    """What was tuned -> where."""
    config: RunConfig
    """Of the run that the settings are for."""
    metric: str = "accuracy"
    """What the scores are."""

    @property
    def default(self) -> Trial:
        """The method as it was written, with the caller's learning rate."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best of those that came furthest and broke down with the fewest seeds, the first of
        equals; the defaults, where the training of every trial broke down."""

        def rank(trial: Trial) -> tuple[int, int, float, int]:
            score = metric(self.metric).sign * (trial.score or 0.0)
            return trial.rounds, -trial.breakdowns, score, -trial.number

        return max((t for t in self.trials if t.score is not None), key=rank, default=self.default)

    @property
    def expression(self) -> str:
        """The method with its best settings, learning rate included."""
        return self.best.expression

    @property
    def settings(self) -> Mapping[str, Any]:
        """The best settings by name."""
        return self.best.settings

    @property
    def score(self) -> float | None:
        """Of the best trial, on validation rows."""
        return self.best.score

    @property
    def cpu_seconds(self) -> float:
        """Of all trials."""
        return sum(trial.cpu_seconds for trial in self.trials)

    @property
    def command(self) -> str:
        """Trains with the best settings, test rows and all."""
        return run_command(self.expression, self.config)

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "method": self.label,
            "best": {
                "method": self.expression,
                "trial": self.best.number,
                "settings": dict(self.settings),
                "score": self.score,
            },
            "default_score": self.default.score,
            "tuned": dict(self.ranges),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "command": self.command,
            "trials": [trial.as_json() for trial in self.trials],
        }


@dataclass(frozen=True)
class TuneResult:
    """A tuning: its methods in the order asked for, all with as many trials."""

    methods: list[Tuned]
    trials: int
    """Of every method; one of a method that leaves nothing open."""
    confirm: int
    """With how many further seeds those that came to the end were trained."""
    rungs: list[int]
    """Rounds at which trials were compared."""
    validation: str
    """On which rows they were scored, in a sentence."""
    config: RunConfig
    out: str | None
    """The folder of the trials."""

    @property
    def command(self) -> str:
        """Compares the methods with their best settings."""
        return compare_command([tuned.expression for tuned in self.methods], self.config)

    def as_json(self) -> dict[str, Any]:
        """In JSON's types, as `tune.json` holds it."""
        return {
            "trials": self.trials,
            "confirm": self.confirm,
            "rungs": self.rungs,
            "seed": self.config.seed,
            "validation": self.validation,
            "methods": [tuned.as_json() for tuned in self.methods],
            "command": self.command,
        }

    def __repr__(self) -> str:
        def line(tuned: Tuned) -> str:
            of = metric(tuned.metric)
            score = "broke down" if tuned.score is None else of.shown(tuned.score)
            name = "" if of.name == "accuracy" else f"{words(of.name)} "
            return f"{tuned.label}: {tuned.expression} ({name}{score} on validation rows)"

        return "\n".join(map(line, self.methods))

    def _repr_html_(self) -> str:
        """The table of the terminal, for notebooks."""
        from fedloom.tuning.terminal import best_table

        return as_html(best_table(self))
