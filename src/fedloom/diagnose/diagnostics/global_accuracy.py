"""Global accuracy: local models and the aggregated one on balanced rows (FedBR Table 6)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedloom.diagnose.charts import newest
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import Measure, Options, Outcome
from fedloom.diagnose.per_client import SIDES, Column, Counts, Sides, columns_of, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html
from fedloom.record import Number

T = TypeVar("T")


@dataclass(frozen=True)
class Accuracy(Generic[T]):
    """Share of right answers, and its binomial standard deviation."""

    accuracy: T
    noise: T


@dataclass(frozen=True)
class AggregatedAccuracy:
    """Of the global model; NaN where there is none."""

    accuracy: Number
    noise: Number
    why: str | None
    """Why there is none."""


@dataclass(frozen=True)
class GlobalAccuracyResult:
    """Every client's model on the same balanced rows."""

    clients: Counts
    before: Accuracy[Column]
    after: Accuracy[Column]
    mean: Sides[Accuracy[Number]]
    aggregated: AggregatedAccuracy
    chance: Number
    n: int
    """Rows."""


class GlobalAccuracyMeasure(Measure[GlobalAccuracyResult]):
    """Keeps two accuracies of every client."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._clients: dict[int, Sides[Accuracy[float]]] = {}

    def see(self, client: ClientView) -> None:
        rows = client.balanced
        before, after = (
            (client.model(side).probabilities(rows).argmax(1) == rows.y).double() for side in SIDES
        )
        self._clients[client.cid] = Sides(
            _accuracy(float(before.mean()), len(rows)), _accuracy(float(after.mean()), len(rows))
        )

    def outcomes(self) -> Iterator[Outcome[GlobalAccuracyResult]]:
        before, after = ([sides[side] for sides in self._clients.values()] for side in SIDES)
        n = len(self.snapshots.samples.balanced)
        share, why = self.snapshots.aggregated_accuracy()
        whole = _accuracy(math.nan if share is None else share, n)
        result = GlobalAccuracyResult(
            clients=tuple(self._clients),
            before=columns_of(before),
            after=columns_of(after),
            mean=Sides(means_of(before), means_of(after)),
            aggregated=AggregatedAccuracy(whole.accuracy, whole.noise, why),
            chance=1 / self.snapshots.data.classes,
            n=n,
        )
        yield Outcome("both", None, "bal", result)


def _accuracy(share: float, n: int) -> Accuracy[float]:
    return Accuracy(share, math.sqrt(share * (1 - share) / n))


def _rows(reading: Reading[GlobalAccuracyResult]) -> list[Row]:
    result = reading.result
    numbers = {side: result.mean[side].accuracy for side in SIDES}
    if result.aggregated.why:
        reference = f"no aggregated model: {result.aggregated.why}"
    else:
        reference = f"aggregated model: {short(result.aggregated.accuracy)}"
    return [Row("accuracy on all classes", reading.layer, reading.data, numbers, reference)]


def _chart(name: str, readings: list[Reading[GlobalAccuracyResult]], drawings: Drawings) -> Html:
    last = newest(readings)[-1]
    result, whole = last.result, last.result.aggregated
    references = [{"name": "chance", "value": _percent(result.chance)}]
    if not math.isnan(whole.accuracy):
        references.append({"name": "aggregated", "value": _percent(whole.accuracy)})
    before, after = (list(map(_percent, x.accuracy)) for x in (result.before, result.after))
    clients = list(map(str, result.clients))
    rows = [
        *zip(clients, before, after, strict=True),
        ("mean", *(_percent(result.mean[side].accuracy) for side in SIDES)),
    ]
    missing = f" There is no global model: {whole.why}." if whole.why else ""
    return drawings.figure(
        name,
        f"{DIAGNOSTIC.title}, round {last.round}",
        {
            "kind": "bars",
            "ylabel": "accuracy %",
            "xlabel": "client",
            "groups": clients,
            "series": [{"key": "before", "values": before}, {"key": "after", "values": after}],
            "references": references,
        },
        plain_table(f"{name}-table", "Accuracy in percent", ["client", *SIDES], rows),
        f"Each client's model on {result.n} class-balanced rows that are the same for all."
        + missing,
    )


def _percent(share: float) -> float | None:
    return rounded(100 * share, 2)


DIAGNOSTIC = Diagnostic(
    name="global_accuracy",
    title="Accuracy on balanced rows",
    order=80,
    measure=GlobalAccuracyMeasure,
    result=GlobalAccuracyResult,
    rows=_rows,
    chart=_chart,
)
