"""The numbers of a report, from runs that compare; every statistic is one of `fedloom.analysis`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from fedloom.analysis.collaboration_gain import Gain, gain
from fedloom.analysis.cost import pace, sent_to_target
from fedloom.analysis.evenness import Fairness, fairness
from fedloom.analysis.significance import Paired, compare, holm
from fedloom.analysis.targets import (
    best_rounds,
    median_rounds,
    rounds_to_target,
    speed_up,
    worst_client,
)
from fedloom.report.groups import Group, Row
from fedloom.report.runs import StoredRun
from fedloom.runs.ledger import Account


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    std: float | None
    """Between seeds, over S - 1; None of a single seed."""

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None if no seed has the number.

        >>> Spread.of([0.25, None, 0.75]).mean, Spread.of([None])
        (0.5, None)
        """
        there = [v for v in values if v is not None and math.isfinite(v)]
        if not there:
            return None
        return cls(fmean(there), stdev(there) if len(there) > 1 else None)


# ------------------------------------------------------------------ accuracy


@dataclass(frozen=True)
class AccuracyLine:
    """How well a method did, over seeds."""

    accuracy: Spread | None
    worst: Spread | None
    """The worst client at the result."""
    worst_decile: Spread | None
    best_five: Spread | None
    """Mean of the five best rounds, whichever they are; None if the curve is of another model than
    the result, as are the next two."""
    worst_best_five: Spread | None
    """The same of the worst client."""
    last_ten: Spread | None
    by_chance: float
    """How far best_five of a flat curve lies above it, in standard deviations of its noise."""
    std: Spread | None
    """Between clients."""
    true_std: Spread | None
    """Without what finite test sets add."""
    jain: Spread | None
    gini: Spread | None
    worst_by_chance: Spread | None


def accuracy_line(row: Row) -> AccuracyLine:
    """Of one method."""
    runs = row.shown
    led = [run for run in runs if run.curve_leads_to_result]
    curves = [curve.accuracy for run in led if (curve := run.curve()).rounds]
    best = [best_rounds(values) for values in curves]
    worst = [best_rounds(values).mean for run in led if len(values := worst_curve(run))]
    even = [found for run in runs if (found := evenness(run)) is not None]
    tenths = [(run.summary or {}).get("worst_decile") for run in runs]
    return AccuracyLine(
        accuracy=Spread.of(run.accuracy for run in runs),
        worst=Spread.of(f.worst for f in even),
        worst_decile=Spread.of(tenths if row.ended else (f.worst_decile for f in even)),
        best_five=Spread.of(b.mean for b in best),
        worst_best_five=Spread.of(worst),
        last_ten=Spread.of(b.last for b in best),
        by_chance=best[0].by_chance if best else math.nan,
        std=Spread.of(f.std for f in even),
        true_std=Spread.of(f.true_std for f in even),
        jain=Spread.of(f.jain for f in even),
        gini=Spread.of(f.gini for f in even),
        worst_by_chance=Spread.of(f.worst_by_chance for f in even),
    )


def evenness(run: StoredRun) -> Fairness | None:
    """How evenly the clients of a run are served."""
    scores = list(run.client_scores.values())
    return fairness([a for a, _ in scores], [n for _, n in scores]) if scores else None


def worst_curve(run: StoredRun) -> list[float]:
    """The lowest client's accuracy after every scored round."""
    scored = [s["clients"] for r in run.records if (s := r["scores"].get(run.curve_at))]
    if not scored:
        return []
    ids = sorted({cid for clients in scored for cid in clients})
    cells = [[clients.get(cid) for cid in ids] for clients in scored]
    return [float(v) for v in worst_client(np.array(cells, dtype=np.float64))]


# ------------------------------------------------------------------ significance


@dataclass(frozen=True)
class Versus:
    """One method against another."""

    test: Paired | None
    """None where they have no seed in common."""
    holm: float
    """p over all comparisons of the table."""


def best_row(group: Group) -> Row | None:
    """The highest mean accuracy among methods that ended."""
    ended = [(found.mean, row) for row in group.rows if row.ended and (found := _mean(row))]
    return max(ended, key=lambda pair: pair[0])[1] if ended else None


def _mean(row: Row) -> Spread | None:
    return Spread.of(run.accuracy for run in row.ended)


def comparisons(group: Group, references: Sequence[Row]) -> dict[tuple[str, str], Versus]:
    """(method, reference) -> the test that fits, Holm over all; a pair is tested once."""
    planned: list[tuple[Row, Row]] = []
    for reference in references:
        for row in group.rows:
            if row is not reference and row.ended and (reference, row) not in planned:
                planned.append((row, reference))
    tests = [paired(row, reference) for row, reference in planned]
    adjusted = holm([math.nan if t is None else t.p for t in tests]) if tests else []
    return {
        (row.label, reference.label): Versus(test, p)
        for (row, reference), test, p in zip(planned, tests, adjusted, strict=True)
    }


def paired(row: Row, reference: Row) -> Paired | None:
    """Differences per client over the seeds (with their partitions) that both have."""
    common = sorted(row.units.keys() & reference.units.keys())
    scores = [(row.units[u].client_scores, reference.units[u].client_scores) for u in common]
    ids = [a.keys() & b.keys() for a, b in scores]
    if not common or not all(ids):
        return None
    same = len({partition for _, partition in common}) == 1
    if same and any(a != b for a, b in pairwise(ids)):  # not all clients scored in every seed
        shared = set.intersection(*map(set, ids))
        same, ids = bool(shared), [shared for _ in ids] if shared else ids
    differences = [
        [a[cid][0] - b[cid][0] for cid in sorted(chosen, key=int)]
        for (a, b), chosen in zip(scores, ids, strict=True)
    ]
    return compare(differences, same)


# ------------------------------------------------------------------ cost


@dataclass(frozen=True)
class CostLine:
    """What a method cost, over seeds."""

    parameters: float | None
    """Numbers that one client sends in one round."""
    megabytes_up: Spread | None
    """Sent by the average client over the run."""
    megabytes_down: Spread | None
    seconds: Spread | None
    round_seconds: Spread | None
    """Median over rounds without the first."""
    training_seconds: Spread | None
    """The same of local training alone, all clients added."""
    targets: list[TargetLine]


@dataclass(frozen=True)
class TargetLine:
    """The way to one accuracy: medians over seeds, None if not half of them got there, or if the
    curve is of another model than the result."""

    target: float
    rounds: float | None
    megabytes: float | None
    speed_up: float | None
    """FedAvg's rounds over these."""


def default_targets(group: Group) -> list[float]:
    """What FedAvg, or without it every method, reached by its last round in every seed."""
    fedavg = group.named("fedavg")
    rows = group.rows if fedavg is None else [fedavg]
    runs = [run for row in rows for run in row.shown if run.curve_leads_to_result]
    ends = [run.curve().accuracy[-1:] for run in runs]
    return [min(lowest)] if (lowest := [a for end in ends for a in end]) else []


def cost_line(row: Row, targets: Sequence[float], fedavg: Row | None) -> CostLine:
    """Of one method."""
    runs = row.shown
    totals = [_totals(run) for run in runs if run.records]
    rounds = [[r for r in run.records if r["kind"] == "train"] for run in runs]
    training = [[_training(r) for r in records] for records in rounds if records]
    return CostLine(
        parameters=_parameters(runs),
        megabytes_up=Spread.of(t["bytes_up"] for t in totals),
        megabytes_down=Spread.of(t["bytes_down"] for t in totals),
        seconds=Spread.of(t["seconds"] for t in totals),
        round_seconds=Spread.of(pace([r["seconds"] for r in rs]).median for rs in rounds if rs),
        training_seconds=Spread.of(pace(seconds).median for seconds in training),
        targets=[target_line(row, target, fedavg) for target in targets],
    )


def target_line(row: Row, target: float, fedavg: Row | None) -> TargetLine:
    """Rounds, traffic and speed-up of one method on the way to an accuracy."""
    reached = [_reached(run, target) for run in row.shown]
    sent: list[Any] = [
        None if found is None else found.total
        for run, t in zip(row.shown, reached, strict=True)
        if run.records
        for found in [_sent(run, t)]
    ]
    rounds = median_rounds(reached)
    base = None if fedavg is None else median_rounds([_reached(r, target) for r in fedavg.shown])
    return TargetLine(target, rounds, median_rounds(sent) if sent else None, speed_up(base, rounds))


def _reached(run: StoredRun, target: float) -> int | None:
    curve = run.curve()
    if not curve.rounds or not run.curve_leads_to_result:
        return None
    return rounds_to_target(curve.accuracy, target, rounds=curve.rounds)


def _sent(run: StoredRun, reached: int | None) -> Any:
    columns = [[r[key] for r in run.records] for key in ("bytes_up", "bytes_down", "round")]
    up, down, rounds = columns
    return sent_to_target(reached, up, down, rounds=rounds, participants=run.clients)


def _totals(run: StoredRun) -> dict[str, float]:
    """Of the whole run so far: megabytes of the average client, seconds by the clock."""
    scale = {"bytes_up": 1e6 * run.clients, "bytes_down": 1e6 * run.clients, "seconds": 1.0}
    return {key: sum(r[key] for r in run.records) / by for key, by in scale.items()}


def _training(record: dict[str, Any]) -> float:
    return float(sum(s.get("local training", 0.0) for s in record["activities"].values()))


def _parameters(runs: list[StoredRun]) -> float | None:
    """Median over clients and rounds, from the ledger."""
    counts: list[int] = []
    for run in runs:
        if run.paths.ledger.exists():
            account = Account.read(run.paths.ledger)
            size = {
                k: sum(prod(shape) for _, shape, *_ in s.tensors) for k, s in account.sets.items()
            }
            for step in account.steps:
                if step["kind"] == "train":
                    counts += [size[g["set"]] for g in step["shared"] for _ in g["clients"]]
    return median(counts) if counts else None


# ------------------------------------------------------------------ clients


ClientKey = tuple[str, str]
"""Partition and client: the same client in all seeds that share the partition."""


@dataclass(frozen=True)
class GainLine:
    """A method's clients beside themselves under another method."""

    clients: list[ClientKey]
    found: Gain


def client_means(row: Row) -> dict[ClientKey, tuple[float, int]]:
    """Each client's accuracy, mean over the seeds with its partition, and its test rows."""
    values: dict[ClientKey, list[float]] = {}
    rows: dict[ClientKey, int] = {}
    for run in row.shown:
        for cid, (accuracy, n) in run.client_scores.items():
            values.setdefault((run.partition, cid), []).append(accuracy)
            rows[run.partition, cid] = n
    return {key: (fmean(found), rows[key]) for key, found in values.items()}


def on_common_seeds(row: Row, reference: Row) -> tuple[Row, Row]:
    """Both with no other runs than those of seeds (with their partitions) that both ended."""
    common = sorted(row.units.keys() & reference.units.keys())
    ours, theirs = (Row(r.label, [r.units[u] for u in common]) for r in (row, reference))
    return ours, theirs


def gains(row: Row, reference: Row | None) -> GainLine | None:
    """Gain of every client over a reference, on the seeds both have; None without any."""
    if reference is None:
        return None
    ours, theirs = (client_means(r) for r in on_common_seeds(row, reference))
    keys = [key for key in ours if key in theirs]
    if not keys:
        return None
    found = gain(
        [ours[k][0] for k in keys], [theirs[k][0] for k in keys], [ours[k][1] for k in keys]
    )
    return GainLine(keys, found)
