"""What a run tells about the quantities that papers print.

Accuracies are in percent, as papers print them. A quantity that is not here is kept in a table's
file all the same, and shown as not measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedloom.analysis.targets import rounds_to_target
from fedloom.record import RoundRecord, Summary
from fedloom.runs.choice import BEST
from fedloom.runs.experiment import Experiment

OF_ONE = "accuracy/"
"""Before the name of a client, or of a shared test set: `accuracy/photo`."""
NOT_MEASURED = "not measured by this command"


@dataclass(frozen=True)
class Ended:
    """A run that ended, as quantities are read from it."""

    experiment: Experiment
    summary: Summary
    records: Sequence[RoundRecord]
    target: float | None
    """Accuracy in percent to which rounds are counted, where the table has one."""


def _rounds_to(run: Ended, target: float | None) -> int | None:
    """The first round whose number of the curve reaches a target in percent."""
    curve = [(r.round, r.headline.value) for r in run.records if r.headline is not None]
    if target is None or not curve:
        return None
    values, rounds = [value for _, value in curve], [at for at, _ in curve]
    return rounds_to_target(values, target / 100, rounds=rounds)


def _megabytes_to_target(run: Ended) -> float | None:
    """Sent and received by a client until the round that reaches the target."""
    last = _rounds_to(run, run.target)
    if last is None:
        return None
    both = sum(r.bytes_up + r.bytes_down for r in run.records if r.round <= last)
    return both / run.summary.clients / 1e6


def _worst(run: Ended) -> float:
    """Of the worst client, or shared test set; where the five best rounds count, the mean of the
    five best of that."""
    result = run.summary.result
    if result.select != "mean_of_five_best_test":
        return 100 * min(result.values)
    scores = [score for r in run.records if (score := r.score(result.at)) is not None]
    lowest = [min(score.metrics[result.metric]) for score in scores]
    return 100 * fmean(sorted(lowest)[-BEST:])


def _newcomers(run: Ended) -> float | None:
    return None if run.summary.newcomers is None else 100 * run.summary.newcomers.value


def _parameters(run: Ended) -> float:
    """Of the first client's network; buffers do not count."""
    return sum(p.numel() for p in run.experiment.program.net(0).parameters())


QUANTITIES: dict[str, Callable[[Ended], float | None]] = {
    "accuracy": lambda run: 100 * run.summary.accuracy,
    "worst_client": _worst,
    "best_client": lambda run: 100 * max(run.summary.result.values),
    "worst_decile": lambda run: 100 * run.summary.worst_decile,
    "deviation_over_clients": lambda run: 100 * run.summary.result.std,
    "newcomers": _newcomers,
    "iterations": lambda run: run.summary.rounds,
    "rounds_to_target": lambda run: _rounds_to(run, run.target),
    "megabytes_up": lambda run: run.summary.bytes_up / run.summary.clients / 1e6,
    "megabytes_down": lambda run: run.summary.bytes_down / run.summary.clients / 1e6,
    "megabytes_to_target": _megabytes_to_target,
    "seconds": lambda run: run.summary.seconds,
    "seconds_per_round": lambda run: run.summary.seconds / run.summary.rounds,
    "minutes": lambda run: run.summary.seconds / 60,
    "minutes_per_round": lambda run: run.summary.seconds / 60 / run.summary.rounds,
    "parameters": _parameters,
}
"""Name -> its value in a run; None where the run has none. Megabytes are those of one client, up to
the end of the run where no target is named; `rounds_to_85` and the like are read beside these."""
_TO_TARGET = ("rounds_to_target", "megabytes_to_target")
_ROUNDS_TO = re.compile(r"rounds_to_(\d+(?:\.\d+)?)")
_IN_PERCENT = (
    *("accuracy", "worst_client", "best_client", "worst_decile", "deviation_over_clients"),
    "newcomers",
)


def in_percent(quantity: str) -> bool:
    """Whether a point of it is a point of percent."""
    return quantity in _IN_PERCENT or quantity.startswith(OF_ONE)


def is_measured(quantity: str) -> bool:
    """Whether this command reads the quantity from a run."""
    counted = _ROUNDS_TO.fullmatch(quantity) is not None
    return quantity in QUANTITIES or quantity.startswith(OF_ONE) or counted


def needs_target(quantity: str) -> bool:
    """Whether it counts to the target that a table names for a column."""
    return quantity in _TO_TARGET


def value_of(quantity: str, run: Ended) -> float | None:
    """A quantity of a run; None where the run has none, or nobody knows how to measure it."""
    if quantity.startswith(OF_ONE):
        return _accuracy_of_one(quantity.removeprefix(OF_ONE), run)
    if (percent := _ROUNDS_TO.fullmatch(quantity)) is not None:
        return _rounds_to(run, float(percent[1]))
    return QUANTITIES[quantity](run) if quantity in QUANTITIES else None


def _accuracy_of_one(name: str, run: Ended) -> float | None:
    """The accuracy of the clients, or of the shared test set, of this name: `photo` is also the
    mean of `photo 1` and `photo 2`."""
    data, result = run.experiment.data, run.summary.result
    on_shared = result.at.group == "shared tests"
    names = list(data.shared_tests) if on_shared else data.partition.client_names
    wanted = re.compile(rf"{re.escape(name)}( \d+)?", re.IGNORECASE)
    values = [v for at, v in result.by_client().items() if wanted.fullmatch(names[at])]
    return 100 * sum(values) / len(values) if values else None
