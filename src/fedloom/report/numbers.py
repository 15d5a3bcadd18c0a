"""The numbers of a report, from runs that compare; every statistic is one of `fedloom.analysis`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import fmean, median

import numpy as np

from fedloom.analysis.collaboration_gain import Gain, gain, plain_gain
from fedloom.analysis.cost import Sent, pace, sent_to_target
from fedloom.analysis.evenness import Fairness, fairness
from fedloom.analysis.significance import Interval, Paired, compare, holm, holm_rates
from fedloom.analysis.targets import (
    best_rounds,
    median_rounds,
    rounds_to_target,
    speed_up,
    worst_client,
)
from fedloom.launch.tables import OverSeeds
from fedloom.record import RoundRecord, Spread
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.runs import ClientResult, StoredRun
from fedloom.runs.ledger import Account

BEST, LAST = 5, 10
"""How many of the highest and of the last scored rounds are averaged; with fewer, neither is."""

# ------------------------------------------------------------------ accuracy


@dataclass(frozen=True)
class AccuracyLine:
    """How well a method did, over seeds."""

    accuracy: OverSeeds | None
    worst: OverSeeds | None
    """The worst client at the result."""
    worst_decile: OverSeeds | None
    newcomers: OverSeeds | None
    """Clients that joined after the training."""
    best_five: OverSeeds | None
    """Mean of the five best rounds, whichever they are; None if so few were scored, or if the
    curve is of another model than the result, as are the next two."""
    worst_best_five: OverSeeds | None
    """The same of the worst client."""
    last_ten: OverSeeds | None
    by_chance: float
    """How far best_five of a flat curve lies above it, in standard deviations of its noise."""
    std: OverSeeds | None
    """Between clients."""
    true_std: OverSeeds | None
    """Without what finite test sets add; like the next three, of accuracies alone."""
    jain: OverSeeds | None
    gini: OverSeeds | None
    worst_by_chance: OverSeeds | None


def accuracy_line(row: MethodRuns) -> AccuracyLine:
    """Of one method."""
    runs = row.shown
    leading = [run for run in runs if run.curve_leads_to_result]
    curves = [run.curve().accuracy for run in leading]
    sign = runs[0].about.sign
    best = [best_rounds(_signed(sign, curve), BEST) for curve in curves if len(curve) > BEST]
    worst_curves = [c for run in leading if len(c := worst_curve(run)) > BEST]
    worst = [sign * best_rounds(_signed(sign, curve), BEST).mean for curve in worst_curves]
    last = [best_rounds(curve).last for curve in curves if len(curve) >= LAST]
    even = [measure for run in runs if (measure := evenness(run)) is not None]
    ends = [end for run in runs if (end := _worst_and_spread(run)) is not None]
    tenths = [run.summary.worst_decile for run in row.ended if run.summary]
    joined = [run.summary.newcomers for run in row.ended if run.summary]
    return AccuracyLine(
        accuracy=OverSeeds.of(run.accuracy for run in runs),
        worst=OverSeeds.of(worst for worst, _ in ends),
        worst_decile=OverSeeds.of(tenths or (spread.worst_decile for _, spread in ends)),
        newcomers=OverSeeds.of(chosen.value for chosen in joined if chosen),
        best_five=OverSeeds.of(sign * b.mean for b in best),
        worst_best_five=OverSeeds.of(worst),
        last_ten=OverSeeds.of(last),
        by_chance=best[0].by_chance if best else math.nan,
        std=OverSeeds.of(spread.std for _, spread in ends),
        true_std=OverSeeds.of(e.true_std for e in even),
        jain=OverSeeds.of(e.jain for e in even),
        gini=OverSeeds.of(e.gini for e in even),
        worst_by_chance=OverSeeds.of(e.worst_by_chance for e in even),
    )


def evenness(run: StoredRun) -> Fairness | None:
    """How evenly the clients of a run are served, by accuracies: what luck adds to these is known
    from the numbers of rows."""
    results = run.client_results.values()
    if not results or run.metric != "accuracy":
        return None
    return fairness([r.accuracy for r in results], [r.rows for r in results])


def _worst_and_spread(run: StoredRun) -> tuple[float, Spread] | None:
    """The worst client of a run, and the spread over all."""
    results = run.client_results.values()
    if not results:
        return None
    values, rows = [r.accuracy for r in results], [r.rows for r in results]
    return max(values, key=lambda v: -run.about.gain(v)), Spread.of(
        values, rows, run.about.higher_is_better
    )


def _signed(sign: int, curve: Sequence[float]) -> list[float]:
    """A curve, turned so that higher is better."""
    return [sign * value for value in curve]


def worst_curve(run: StoredRun) -> list[float]:
    """The worst client's number after every scored round."""
    scores = [record.score(headline.at) for record, headline in run.headlines]
    by_round = [score.by_client(run.metric) for score in scores if score is not None]
    if not by_round:
        return []
    ids = sorted({cid for clients in by_round for cid in clients})
    cells = [[clients.get(cid) for cid in ids] for clients in by_round]
    sign = run.about.sign
    table = sign * np.array(cells, dtype=np.float64)
    scored = table[~np.isnan(table).all(axis=1)]
    return [sign * float(v) for v in worst_client(scored)] if len(scored) else []


# ------------------------------------------------------------------ significance


@dataclass(frozen=True)
class Versus:
    """One method against another."""

    test: Paired | None
    """None where they have no seed in common."""
    holm: float
    """p over all comparisons of the table."""
    interval: Interval
    """Of the difference, at the error rate at which Holm's procedure tested it: it leaves out 0
    exactly where `holm` is below 5 %."""


def best_row(group: RunGroup) -> MethodRuns | None:
    """The best mean among methods that ended."""
    ended = [
        (row.ended[0].about.gain(mean.mean), row)
        for row in group.rows
        if row.ended and (mean := _mean(row))
    ]
    return max(ended, key=lambda pair: pair[0])[1] if ended else None


def _mean(row: MethodRuns) -> OverSeeds | None:
    return OverSeeds.of(run.accuracy for run in row.ended)


def comparisons(group: RunGroup, references: Sequence[MethodRuns]) -> dict[tuple[str, str], Versus]:
    """(method, reference) -> the test that fits, Holm over all; a pair is tested once."""
    planned: list[tuple[MethodRuns, MethodRuns]] = []
    for reference in references:
        for row in group.rows:
            if row is not reference and row.ended and (reference, row) not in planned:
                planned.append((row, reference))
    tests = [paired(row, reference) for row, reference in planned]
    p = [math.nan if test is None else test.p for test in tests]
    return {
        (row.label, reference.label): Versus(test, raised, _interval(test, rate))
        for (row, reference), test, raised, rate in zip(
            planned, tests, holm(p), holm_rates(p), strict=True
        )
    }


def _interval(test: Paired | None, error_rate: float) -> Interval:
    return (math.nan, math.nan) if test is None else test.interval_at(error_rate)


def paired(row: MethodRuns, reference: MethodRuns) -> Paired | None:
    """Differences per client over the seeds (with their partitions) that both have."""
    common = sorted(row.units.keys() & reference.units.keys())
    results = [(row.units[u].client_results, reference.units[u].client_results) for u in common]
    ids = [ours.keys() & theirs.keys() for ours, theirs in results]
    if not common or not all(ids):
        return None
    same = len({partition for _, partition in common}) == 1
    if same and any(a != b for a, b in pairwise(ids)):  # not all clients scored in every seed
        shared = set.intersection(*map(set, ids))
        same, ids = bool(shared), [shared for _ in ids] if shared else ids
    differences = [
        [ours[cid].accuracy - theirs[cid].accuracy for cid in sorted(chosen)]
        for (ours, theirs), chosen in zip(results, ids, strict=True)
    ]
    return compare(differences, same)


# ------------------------------------------------------------------ cost


@dataclass(frozen=True)
class CostLine:
    """What a method cost, over seeds."""

    parameters: float | None
    """Numbers that one client sends in one round."""
    megabytes_up: OverSeeds | None
    """Sent by the average client over the run."""
    megabytes_down: OverSeeds | None
    seconds: OverSeeds | None
    round_seconds: OverSeeds | None
    """Median over rounds without the first."""
    training_seconds: OverSeeds | None
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


def default_targets(group: RunGroup) -> list[float]:
    """What FedAvg, or without it every method, reached by its last round in every seed."""
    fedavg = group.named("fedavg")
    rows = group.rows if fedavg is None else [fedavg]
    runs = [run for row in rows for run in row.shown if run.curve_leads_to_result]
    ends = [accuracy for run in runs for accuracy in run.curve().accuracy[-1:]]
    return [max(ends, key=lambda end: -group.metric.gain(end))] if ends else []


def cost_line(row: MethodRuns, targets: Sequence[float], fedavg: MethodRuns | None) -> CostLine:
    """Of one method."""
    runs = [run for run in row.shown if run.records]
    rounds = [training for run in runs if (training := _training_rounds(run))]
    return CostLine(
        parameters=_parameters(runs),
        megabytes_up=OverSeeds.of(
            _megabytes(run, [r.bytes_up for r in run.records]) for run in runs
        ),
        megabytes_down=OverSeeds.of(
            _megabytes(run, [r.bytes_down for r in run.records]) for run in runs
        ),
        seconds=OverSeeds.of(sum(r.seconds for r in run.records) for run in runs),
        round_seconds=OverSeeds.of(pace([r.seconds for r in rs]).median for rs in rounds),
        training_seconds=OverSeeds.of(pace(list(map(_training, rs))).median for rs in rounds),
        targets=[target_line(row, target, fedavg) for target in targets],
    )


def target_line(row: MethodRuns, target: float, fedavg: MethodRuns | None) -> TargetLine:
    """Rounds, traffic and speed-up of one method on the way to an accuracy."""
    reached = [_reached(run, target) for run in row.shown]
    sent = [_sent(run, t) for run, t in zip(row.shown, reached, strict=True) if run.records]
    totals = [None if traffic is None else traffic.total for traffic in sent]
    rounds = median_rounds(reached)
    base = None if fedavg is None else median_rounds([_reached(r, target) for r in fedavg.shown])
    megabytes = median_rounds(totals) if totals else None
    return TargetLine(target, rounds, megabytes, speed_up(base, rounds))


def _reached(run: StoredRun, target: float) -> int | None:
    curve = run.curve()
    if not curve.rounds or not run.curve_leads_to_result:
        return None
    sign = run.about.sign
    return rounds_to_target(_signed(sign, curve.accuracy), sign * target, rounds=curve.rounds)


def _sent(run: StoredRun, reached: int | None) -> Sent | None:
    return sent_to_target(
        reached,
        [r.bytes_up for r in run.records],
        [r.bytes_down for r in run.records],
        rounds=[r.round for r in run.records],
        participants=run.clients,
    )


def _megabytes(run: StoredRun, sent: list[int]) -> float:
    """Of the average client, in the whole run so far."""
    return sum(sent) / run.clients / 1e6


def _training_rounds(run: StoredRun) -> list[RoundRecord]:
    return [record for record in run.records if record.kind == "train"]


def _training(record: RoundRecord) -> float:
    return sum(seconds.get("local training", 0.0) for seconds in record.activities.values())


def _parameters(runs: list[StoredRun]) -> float | None:
    """Median over clients and rounds, from the ledger."""
    counts: list[int] = []
    for run in runs:
        if not run.paths.ledger.exists():
            continue
        account = Account.read(run.paths.ledger)
        size = {
            number: sum(prod(tensor.shape) for tensor in shared.tensors)
            for number, shared in account.sets.items()
        }
        for step in account.steps:
            if step.kind == "train":
                counts += [size[by.number] for by in step.shared for _ in by.clients]
    return median(counts) if counts else None


# ------------------------------------------------------------------ clients


ClientKey = tuple[str, int]
"""Partition and client: the same client in all seeds that share the partition."""


@dataclass(frozen=True)
class GainLine:
    """A method's clients beside themselves under another method."""

    clients: list[ClientKey]
    gain: Gain


def client_means(row: MethodRuns) -> dict[ClientKey, ClientResult]:
    """Each client's accuracy, mean over the seeds with its partition."""
    return mean_results([(run.tested, run.client_results) for run in row.shown])


def newcomer_means(row: MethodRuns) -> dict[ClientKey, ClientResult]:
    """The same of clients that joined after the training."""
    return mean_results([(run.partition, run.newcomer_results) for run in row.shown])


def head_means(row: MethodRuns) -> dict[str, dict[ClientKey, ClientResult]]:
    """Single head -> the same of that head alone."""
    heads = dict.fromkeys(head for run in row.shown for head in run.single_heads)
    return {
        head: mean_results([(run.tested, run.single_heads.get(head, {})) for run in row.shown])
        for head in heads
    }


def mean_results(
    runs: Sequence[tuple[str, dict[int, ClientResult]]],
) -> dict[ClientKey, ClientResult]:
    """Partition and clients' results of each run -> every client's mean over its runs."""
    values: dict[ClientKey, list[float]] = {}
    rows: dict[ClientKey, int] = {}
    for partition, results in runs:
        for cid, result in results.items():
            values.setdefault((partition, cid), []).append(result.accuracy)
            rows[partition, cid] = result.rows
    return {key: ClientResult(fmean(seeds), rows[key]) for key, seeds in values.items()}


def on_common_seeds(row: MethodRuns, reference: MethodRuns) -> tuple[MethodRuns, MethodRuns]:
    """Both with no other runs than those of seeds (with their partitions) that both ended."""
    common = sorted(row.units.keys() & reference.units.keys())
    ours, theirs = (MethodRuns(r.label, [r.units[u] for u in common]) for r in (row, reference))
    return ours, theirs


def gains(row: MethodRuns, reference: MethodRuns | None) -> GainLine | None:
    """Gain of every client over a reference, on the seeds both have; None without any."""
    if reference is None:
        return None
    ours, theirs = (client_means(r) for r in on_common_seeds(row, reference))
    keys = [key for key in ours if key in theirs]
    if not keys:
        return None
    about = row.runs[0].about
    if about.name != "accuracy":
        changes = [about.sign * (ours[k].accuracy - theirs[k].accuracy) for k in keys]
        return GainLine(keys, plain_gain(changes, [ours[k].rows for k in keys]))
    return GainLine(
        keys,
        gain(
            [ours[k].accuracy for k in keys],
            [theirs[k].accuracy for k in keys],
            [ours[k].rows for k in keys],
        ),
    )
