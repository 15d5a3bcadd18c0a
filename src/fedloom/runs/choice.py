"""From the scores of a run to its number, chosen once, as its protocol says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedloom.core.metrics import metric
from fedloom.core.protocol import Protocol
from fedloom.core.score import Moment, SplitName
from fedloom.errors import BadInput
from fedloom.record import At, Chosen, Group, Headline, RoundRecord, Score, Spread

BEST = 5
"""How many rounds `mean_of_five_best_test` averages."""


_Scored = tuple[int, Score]
"""A round, and what it scored."""


def metric_of(protocol: Protocol) -> str:
    """The metric that the result is of; a settled protocol names the task's."""
    return protocol.metric or "accuracy"


def _better(protocol: Protocol, score: Score) -> float:
    """The number of a score, turned so that higher is better."""
    return metric(metric_of(protocol)).gain(_value(protocol, score))


def result_at(protocol: Protocol) -> At:
    """Which model the result of a settled protocol is of, and on whom."""
    assert protocol.moment != "personalized"
    group: Group = "newcomers" if protocol.clients == "new" else "clients"
    if protocol.on == "shared":
        group = "shared tests" if protocol.model == "global" else "clients on shared tests"
    return At(protocol.moment, protocol.split, protocol.model, group)


def curve_at(protocol: Protocol) -> At:
    """Which model the curve over rounds shows: the result's, or where that is scored only at the
    end (final models, newcomers), the one that clients receive."""
    at = result_at(protocol)
    if at.group == "newcomers":
        return replace(at, moment="received", group="clients")
    return replace(at, moment="received") if at.moment == "final" else at


def headline(protocol: Protocol, scores: Sequence[Score]) -> Headline | None:
    """The number of the curve after one step, if the step was scored there."""
    at = curve_at(protocol)
    score = next((score for score in scores if score.at == at), None)
    return None if score is None else Headline(at, metric_of(protocol), _value(protocol, score))


def monitored(protocol: Protocol, record: RoundRecord) -> float | None:
    """The number by which one sees whether training still improves: the curve's, on validation
    rows where they are scored."""
    if record.headline is None:
        return None
    validation = record.score(_on_validation(record.headline.at))
    return record.headline.value if validation is None else _value(protocol, validation)


def monitored_rows(record: RoundRecord) -> SplitName | None:
    """The rows that `monitored` looks at."""
    if record.headline is None:
        return None
    validation = _on_validation(record.headline.at)
    return record.headline.at.split if record.score(validation) is None else validation.split


def choose(protocol: Protocol, records: Sequence[RoundRecord]) -> Chosen:
    """The number of a run with its spread over clients, and the number of every client.

    A run that ended before its final models were made is judged by its curve.
    """
    at = result_at(protocol)
    scored = _scored(records, at) or _scored(records, curve_at(protocol))
    if not scored:
        raise BadInput(f"nothing was scored at {at}; evaluate at least once (eval_every)")
    if protocol.select == "best_test_per_client":
        return _best_of_each_client(protocol, scored)
    if protocol.select == "mean_of_five_best_test":
        best = sorted(scored, key=lambda one: _better(protocol, one[1]))[-BEST:]
        return _average(protocol, best)
    if protocol.select == "best_test":
        return _average(protocol, [max(scored, key=lambda one: _better(protocol, one[1]))])
    if protocol.select == "best_val":
        return _average(protocol, [_best_by_validation(protocol, scored, records)])
    return _average(protocol, scored[-1:])


def _best_by_validation(
    protocol: Protocol, scored: Sequence[_Scored], records: Sequence[RoundRecord]
) -> _Scored:
    """The round that does best on validation rows, the first of equals."""
    validation = dict(_scored(records, _on_validation(scored[0][1].at)))
    candidates = [one for one in scored if one[0] in validation]
    if not candidates:
        raise BadInput(
            "no validation rows were scored, by which a round could be selected; choose a split"
            " with validation rows, for instance 'merged(train=0.6, val=0.2)'"
        )
    return max(candidates, key=lambda one: _better(protocol, validation[one[0]]))


def _on_validation(at: At) -> At:
    """The same model on validation rows. Shared test sets have none: there the clients' decide."""
    group: Group = "newcomers" if at.group == "newcomers" else "clients"
    return replace(at, split="val", group=group)


def newcomers(protocol: Protocol, records: Sequence[RoundRecord]) -> Chosen | None:
    """How the clients that never trained did after they joined, if there were any; under a global
    model, which nobody trains for himself, as they received it."""
    moment: Moment = "received" if protocol.model == "global" else "adapted"
    at = At(moment, protocol.split, protocol.model, "newcomers")
    scored = _scored(records, at)
    return _average(replace(protocol, select="last"), scored[-1:]) if scored else None


def _scored(records: Sequence[RoundRecord], at: At) -> list[_Scored]:
    return [(r.round, score) for r in records if (score := r.score(at)) is not None]


def _value(protocol: Protocol, score: Score) -> float:
    return _averaged(protocol, score.spread(metric_of(protocol)))


def _averaged(protocol: Protocol, spread: Spread) -> float:
    return spread.weighted if protocol.average == "samples" else spread.mean


def _average(protocol: Protocol, scored: Sequence[_Scored]) -> Chosen:
    """The mean over some rounds of each statistic, and of each client's value."""
    spreads = [score.spread(metric_of(protocol)) for _, score in scored]
    mean = Spread(
        mean=fmean(spread.mean for spread in spreads),
        weighted=fmean(spread.weighted for spread in spreads),
        std=fmean(spread.std for spread in spreads),
        worst_decile=fmean(spread.worst_decile for spread in spreads),
    )
    values = {cid: fmean(of_client) for cid, of_client in _by_client(protocol, scored).items()}
    return _chosen(protocol, scored, values, mean)


def _best_of_each_client(protocol: Protocol, scored: Sequence[_Scored]) -> Chosen:
    """Every client's best value, and statistics of these."""
    of = metric(metric_of(protocol))
    values = {
        cid: max(of_client, key=of.gain) for cid, of_client in _by_client(protocol, scored).items()
    }
    rows = _rows(scored)
    spread = Spread.of_metric(of.name, values.values(), [rows[cid] for cid in values])
    return _chosen(protocol, scored, values, spread)


def _by_client(protocol: Protocol, scored: Sequence[_Scored]) -> dict[int, list[float]]:
    """Client -> its values, in the order of ids and rounds."""
    values: dict[int, list[float]] = {cid: [] for cid in sorted(_rows(scored))}
    for _, score in scored:
        for cid, value in score.by_client(metric_of(protocol)).items():
            values[cid].append(value)
    return values


def _rows(scored: Sequence[_Scored]) -> dict[int, int]:
    return {cid: n for _, s in scored for cid, n in zip(s.clients, s.rows, strict=True)}


def _chosen(
    protocol: Protocol, scored: Sequence[_Scored], values: Mapping[int, float], spread: Spread
) -> Chosen:
    rows = _rows(scored)
    return Chosen(
        at=scored[0][1].at,
        metric=metric_of(protocol),
        select=protocol.select,
        average=protocol.average,
        rounds=tuple(t for t, _ in scored),
        value=_averaged(protocol, spread),
        std=spread.std,
        worst_decile=spread.worst_decile,
        clients=tuple(values),
        rows=tuple(rows[cid] for cid in values),
        values=tuple(values.values()),
    )
