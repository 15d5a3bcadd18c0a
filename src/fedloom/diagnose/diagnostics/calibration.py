"""Calibration: confidence against accuracy on clients' own test rows (FedCR 5.1).

Over all clients' rows together and client by client. Where a layer is stochastic (FedCR), one pass
at its mean and two averages over an ensemble are scored beside the method's own prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.analysis.ensemble import logit_average, probability_average
from fedloom.analysis.reliability import BINS, Reliability, calibration_of_clients
from fedloom.analysis.temperature import fit_temperature, tempered
from fedloom.diagnose.charts import newest
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import Measure, Options, Outcome
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView, ModelView, Snapshots
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html
from fedloom.record import Number, When

Way = Literal["predict", "single", "probability_average", "logit_average", "tempered"]
"""How a prediction is made."""
WAYS: dict[Way, str] = {
    "predict": "as the method predicts",
    "single": "one pass at the mean",
    "probability_average": "mean of probabilities",
    "logit_average": "mean of logits",
    "tempered": "after temperature scaling",
}

# ------------------------------------------------------------------ result


@dataclass(frozen=True)
class ReliabilityBins:
    """The table behind a reliability diagram; NaN in empty bins."""

    edges: Column
    counts: Counts
    confidence: Column
    accuracy: Column
    noise: Column


@dataclass(frozen=True)
class CalibrationOfClients:
    """Each on its own rows."""

    ece: Column
    noise: Column
    n: Counts


@dataclass(frozen=True)
class Calibrated:
    """One way of predicting, scored over the rows of all clients; see `analysis.Calibration`."""

    ece: Number
    mce: Number
    rmsce: Number
    gap: Number
    accuracy: Number
    nll: Number
    brier: Number
    n: int
    noise: Number
    """The ece of a calibrated model with these confidences."""
    mean_client_ece: Number
    mean_client_noise: Number
    clients: CalibrationOfClients
    table: ReliabilityBins


@dataclass(frozen=True)
class FittedTemperature:
    """Fitted on clients' validation rows."""

    value: Number
    at_limit: bool
    n: int


@dataclass(frozen=True)
class CalibrationResult:
    """Of all clients' models at one moment."""

    clients: Counts
    ways: Mapping[Way, Calibrated]
    disagreement: float | None
    """Share of rows for which the two averages over an ensemble answer differently."""
    temperature: FittedTemperature | None
    """None without validation rows."""


# ------------------------------------------------------------------ measure


class CalibrationMeasure(Measure[CalibrationResult]):
    """Keeps the probabilities of every client's test and validation rows."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._ways: dict[When, dict[Way, list[Tensor]]] = {}
        self._validation: dict[When, list[tuple[Tensor, Tensor]]] = {}
        self._members: int | None = None
        self._labels: dict[int, Tensor] = {}

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        self._labels[client.cid] = client.test.y
        for side in SIDES:
            self._add(side, client.model(side), client)
        if client.final is not None:
            self._add("final", client.final, client)

    def _add(self, when: When, model: ModelView, client: ClientView) -> None:
        assert client.test is not None
        ways: dict[Way, Tensor] = {"predict": model.probabilities(client.test)}
        if model.stochastic:
            members = model.ensemble_logits(client.test)
            self._members = len(members)
            ways["single"] = torch.softmax(model.single_logits(client.test).double(), 1)
            ways["probability_average"] = probability_average(members)
            ways["logit_average"] = logit_average(members)
        for way, p in ways.items():
            self._ways.setdefault(when, {}).setdefault(way, []).append(p)
        if client.val is not None:
            pair = model.probabilities(client.val), client.val.y
            self._validation.setdefault(when, []).append(pair)

    def outcomes(self) -> Iterator[Outcome[CalibrationResult]]:
        settings = {"bins": BINS, "members": self._members}
        for when, ways in self._ways.items():
            yield Outcome(when, None, "local-test", self._result(when, ways), settings)

    def _result(self, when: When, ways: dict[Way, list[Tensor]]) -> CalibrationResult:
        temperature = None
        if when in self._validation:
            p, y = map(torch.cat, zip(*self._validation[when], strict=True))
            fit = fit_temperature(p.double().log(), y)
            temperature = FittedTemperature(fit.value, fit.at_limit, fit.n)
            cooled = [tempered(one.double().log(), fit.value) for one in ways["predict"]]
            ways = {**ways, "tempered": cooled}
        return CalibrationResult(
            clients=tuple(self._labels),
            ways={way: self._calibrated(parts) for way, parts in ways.items()},
            disagreement=_disagreement(ways),
            temperature=temperature,
        )

    def _calibrated(self, parts: list[Tensor]) -> Calibrated:
        score = calibration_of_clients(list(zip(parts, self._labels.values(), strict=True)))
        pooled = score.pooled
        return Calibrated(
            ece=pooled.ece,
            mce=pooled.mce,
            rmsce=pooled.rmsce,
            gap=pooled.gap,
            accuracy=pooled.accuracy,
            nll=pooled.nll,
            brier=pooled.brier,
            n=pooled.n,
            noise=pooled.noise,
            mean_client_ece=score.mean_ece,
            mean_client_noise=score.mean_noise,
            clients=CalibrationOfClients(
                ece=tuple(one.ece for one in score.clients),
                noise=tuple(one.noise for one in score.clients),
                n=tuple(one.n for one in score.clients),
            ),
            table=_bins(pooled.table),
        )


def _bins(table: Reliability) -> ReliabilityBins:
    return ReliabilityBins(
        edges=tuple(table.edges.tolist()),
        counts=tuple(table.counts.tolist()),
        confidence=tuple(table.confidence.tolist()),
        accuracy=tuple(table.accuracy.tolist()),
        noise=tuple(table.noise.tolist()),
    )


def _disagreement(ways: Mapping[Way, list[Tensor]]) -> float | None:
    if "probability_average" not in ways or "logit_average" not in ways:
        return None
    by_probability = torch.cat(ways["probability_average"]).argmax(1)
    by_logit = torch.cat(ways["logit_average"]).argmax(1)
    return float((by_probability != by_logit).double().mean())


# ------------------------------------------------------------------ terminal


def _rows(calibration: Reading[CalibrationResult]) -> list[Row]:
    final = calibration.snapshot == "final"
    side: Side = "before" if calibration.snapshot == "before" else "after"
    rows = []
    for way, score in calibration.result.ways.items():
        label = f"ECE, {way.replace('_', ' ')}{', final model' if final else ''}"
        reference = f"noise {short(score.noise)}"
        rows.append(Row(label, None, calibration.data, {side: score.ece}, reference))
    return rows


# ------------------------------------------------------------------ report

HEAD = [
    *("prediction", "model", "ECE", "ECE if calibrated", "mean client's ECE", "if calibrated"),
    *("MCE", "confidence less accuracy", "accuracy", "nats", "Brier", "rows"),
]
MODELS: dict[When, str] = {
    "before": "before local training",
    "after": "after local training",
    "final": "adapted",
}


def _chart(name: str, readings: list[Reading[CalibrationResult]], drawings: Drawings) -> Html:
    last = newest(readings)
    keys = list(dict.fromkeys(WAYS[way] for reading in last for way in reading.result.ways))
    views = [
        {
            "name": MODELS[reading.snapshot],
            "series": [
                {"key": WAYS[way], **_diagram(score.table)}
                for way, score in reading.result.ways.items()
            ],
        }
        for reading in last
    ]
    rows = [
        [
            *(WAYS[way], reading.snapshot, score.ece, score.noise),
            *(score.mean_client_ece, score.mean_client_noise, score.mce, score.gap),
            *(score.accuracy, score.nll, score.brier, score.n),
        ]
        for reading in last
        for way, score in reading.result.ways.items()
    ]
    errors = [f"{WAYS[way]}: ECE {score.ece:.3f}" for way, score in last[-1].result.ways.items()]
    return drawings.figure(
        name,
        f"Reliability, round {last[0].round}",
        {
            "kind": "lines",
            "xlabel": "confidence",
            "ylabel": "accuracy",
            "keys": keys,
            "views": views,
            "diagonal": True,
            "dots": True,
        },
        plain_table(f"{name}-table", "Calibration on clients' test rows", HEAD, rows),
        f"{'; '.join(errors)} ({last[-1].snapshot}).",
    )


def _diagram(table: ReliabilityBins) -> dict[str, Any]:
    """Without the empty bins."""
    bins = [
        (confidence, accuracy, count)
        for confidence, accuracy, count in zip(
            table.confidence, table.accuracy, table.counts, strict=True
        )
        if not (math.isnan(confidence) or math.isnan(accuracy))
    ]
    return {
        "x": [rounded(confidence) for confidence, _, _ in bins],
        "y": [rounded(accuracy) for _, accuracy, _ in bins],
        "weight": [count for *_, count in bins],
    }


DIAGNOSTIC = Diagnostic(
    name="calibration",
    title="Calibration",
    order=90,
    measure=CalibrationMeasure,
    result=CalibrationResult,
    rows=_rows,
    chart=_chart,
)
