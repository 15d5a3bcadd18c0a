"""What clients' models predict: classifier bias, accuracy on everybody's rows, calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.analysis.class_bias import classifier_bias, prior_agreement
from fedloom.analysis.ensemble import logit_average, probability_average
from fedloom.analysis.reliability import BINS, Calibration, calibration_of_clients
from fedloom.analysis.temperature import fit_temperature, tempered
from fedloom.diagnose.measures.base import Measure, Options, Outcome, PerClient
from fedloom.diagnose.snapshots import ClientView, ModelView, Snapshots
from fedloom.record import When

SEEN_AT_LEAST = (1, 10)
"""Training rows that make a class a seen one: both are reported."""


class ClassifierBias(Measure):
    """Where rows of classes that a client has never seen go (FedBR Figure 3)."""

    name: ClassVar[str] = "classifier_bias"

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._tables = {least: PerClient() for least in SEEN_AT_LEAST}

    def see(self, client: ClientView) -> None:
        p = [m.probabilities(client.balanced) for m in (client.before, client.after)]
        counts, y = client.train_counts, client.balanced.y
        for least, table in self._tables.items():
            before, after = (_bias(one, y, counts, least) for one in p)
            seen = counts >= least
            unseen = int((~seen)[y].sum())
            table.add(
                client.cid,
                before,
                after,
                seen=seen.long().tolist(),
                train_counts=counts.tolist(),
                blind=float(seen.double().mean()),
                n_unseen=unseen,
                n_seen=len(y) - unseen,
            )

    def outcomes(self) -> Iterator[Outcome]:
        data = self.snapshots.data
        names = list(data.source.class_names)
        for least, table in self._tables.items():
            result = {**table.result(), "classes": data.classes, "class_names": names}
            yield Outcome("both", None, "bal", result, {"seen_at_least": least})


def _bias(p: Tensor, y: Tensor, counts: Tensor, least: int) -> dict[str, Any]:
    found, prior = classifier_bias(p, y, counts, least), prior_agreement(p, counts)
    return {
        "seen_mass": found.seen_mass if found.n_unseen else math.nan,
        "seen_mass_soft": found.seen_mass_soft,
        "seen_mass_noise": found.seen_mass_noise,
        "entropy": found.entropy,
        "distance_to_labels": found.distance_to_labels,
        "distance_noise": found.distance_noise,
        "unseen_recall": found.unseen_recall,
        "seen_recall": found.seen_recall,
        "seen_recall_restricted": found.seen_recall_restricted,
        "prior_correlation": prior.correlation,
        "prior_divergence": prior.divergence,
        "distance_to_uniform": prior.distance_to_uniform,
        "uniform_noise": prior.distance_noise,
        "predicted": found.predicted.tolist(),
        "mean_softmax": found.mean_softmax.tolist(),
        "predicted_all": prior.predicted.tolist(),
    }


class GlobalAccuracy(Measure):
    """Local models and the aggregated one on the balanced rows (FedBR Table 6)."""

    name: ClassVar[str] = "global_accuracy"

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._table = PerClient()

    def see(self, client: ClientView) -> None:
        y = client.balanced.y
        before, after = (
            float((m.probabilities(client.balanced).argmax(1) == y).double().mean())
            for m in (client.before, client.after)
        )
        n = len(y)
        self._table.add(client.cid, _accuracy(before, n), _accuracy(after, n))

    def outcomes(self) -> Iterator[Outcome]:
        n = len(self.snapshots.samples.balanced)
        accuracy, why = self.snapshots.aggregated_accuracy()
        aggregated = _accuracy(math.nan if accuracy is None else accuracy, n)
        result = {
            **self._table.result(),
            "aggregated": {**aggregated, "why": why},
            "chance": 1 / self.snapshots.data.classes,
            "n": n,
        }
        yield Outcome("both", None, "bal", result)


def _accuracy(share: float, n: int) -> dict[str, float]:
    return {"accuracy": share, "noise": math.sqrt(share * (1 - share) / n)}


class CalibrationError(Measure):
    """Confidence against accuracy on each client's own test rows, pooled and client by client.

    A stochastic layer (FedCR) is also scored at its mean and as an ensemble.
    """

    name: ClassVar[str] = "calibration"

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._ways: dict[When, dict[str, list[Tensor]]] = {}
        self._held_out: dict[When, list[tuple[Tensor, Tensor]]] = {}
        self._members: int | None = None
        self._clients: dict[int, Tensor] = {}

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        self._clients[client.cid] = client.test.y
        models: dict[When, ModelView | None] = {
            "before": client.before,
            "after": client.after,
            "final": client.final,
        }
        for when, model in models.items():
            if model is not None:
                self._add(when, model, client)

    def _add(self, when: When, model: ModelView, client: ClientView) -> None:
        assert client.test is not None
        ways = {"predict": model.probabilities(client.test)}
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
            self._held_out.setdefault(when, []).append(pair)

    def outcomes(self) -> Iterator[Outcome]:
        settings = {"bins": BINS, "members": self._members}
        for when, ways in self._ways.items():
            yield Outcome(when, None, "local-test", self._result(when, ways), settings)

    def _result(self, when: When, ways: dict[str, list[Tensor]]) -> dict[str, Any]:
        averages = [ways.get(way) for way in ("probability_average", "logit_average")]
        disagreement = None
        if averages[0] and averages[1]:
            answers = [torch.cat(average).argmax(1) for average in averages if average]
            disagreement = float((answers[0] != answers[1]).double().mean())
        temperature = None
        if when in self._held_out:
            p, y = map(torch.cat, zip(*self._held_out[when], strict=True))
            fitted = fit_temperature(p.double().log(), y)
            temperature = {"value": fitted.value, "at_limit": fitted.at_limit, "n": fitted.n}
            cooled = [tempered(one.double().log(), fitted.value) for one in ways["predict"]]
            ways = {**ways, "tempered": cooled}
        return {
            "clients": list(self._clients),
            "ways": {way: self._scored(parts) for way, parts in ways.items()},
            "disagreement": disagreement,
            "temperature": temperature,
        }

    def _scored(self, parts: list[Tensor]) -> dict[str, Any]:
        found = calibration_of_clients(list(zip(parts, self._clients.values(), strict=True)))
        each = found.clients
        return {
            **_numbers(found.pooled),
            "mean_client_ece": found.mean_ece,
            "mean_client_noise": found.mean_noise,
            "clients": {k: [getattr(one, k) for one in each] for k in ("ece", "noise", "n")},
            "table": {k: v.tolist() for k, v in vars(found.pooled.table).items()},
        }


def _numbers(found: Calibration) -> dict[str, float]:
    return {k: v for k, v in asdict(found).items() if k != "table"}
