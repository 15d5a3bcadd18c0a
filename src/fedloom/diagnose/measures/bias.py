"""Representation bias inside each client: separation, Fisher ratios, drift and overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import nan
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.analysis.drift import feature_drift
from fedloom.analysis.fisher_ratio import discriminant, fisher, fisher_within_classes
from fedloom.analysis.overlap import Overlap, centroid_ratio, feature_collapse
from fedloom.analysis.separation import class_separation
from fedloom.diagnose.measures.base import (
    LayerMeasure,
    Outcome,
    columns_of,
    mean,
    means_of,
)
from fedloom.diagnose.snapshots import ClientView

SEEN = 1
"""Training rows that make a class a seen one."""
WIDEST_DISCRIMINANT = 512
"""A layer's covariance is inverted up to this width."""


class ClassSeparation(LayerMeasure):
    """Share of cosine distance between classes, on each client's own test rows (DualFed)."""

    name: ClassVar[str] = "separation"

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        y = client.test.y
        before, after = (m.features(client.test) for m in (client.before, client.after))
        for layer in before:
            found = class_separation(before[layer], y)
            self.table(layer, "local-test").add(
                client.cid,
                _separation(before[layer], y),
                _separation(after[layer], y),
                n=found.n,
                classes=found.classes,
            )


def _separation(z: Tensor, y: Tensor) -> dict[str, float]:
    found = class_separation(z, y)
    debiased = class_separation(z, y, debiased=True)
    return {"value": found.value, "null": found.null, "debiased": debiased.value}


class FisherRatio(LayerMeasure):
    """Each client's test rows against the other clients', through the client's model (DBE)."""

    name: ClassVar[str] = "fisher"

    def settings(self) -> dict[str, Any]:
        return {"reference": "other clients' test rows"}

    def see(self, client: ClientView) -> None:
        others = client.pool.owners != client.cid
        if client.test is None or len(client.test) < 2 or int(others.sum()) < 2:
            return
        labels = client.test.y, client.pool.y[others]
        both = [
            (model.features(client.test), model.features(client.pool))
            for model in (client.before, client.after)
        ]
        for layer in both[0][0]:
            before, after = (
                _fisher(own[layer], all_[layer][others], *labels, client.classes)
                for own, all_ in both
            )
            n = [len(client.test), int(others.sum())]
            self.table(layer, "local-test").add(client.cid, before, after, n=n)


def _fisher(a: Tensor, b: Tensor, y_a: Tensor, y_b: Tensor, classes: int) -> dict[str, float]:
    found, inside = fisher(a, b), fisher_within_classes(a, y_a, b, y_b, classes)
    together = discriminant(a, b) if a.shape[1] <= WIDEST_DISCRIMINANT else None
    return {
        "largest": found.largest,
        "mean": found.mean,
        "percentile90": found.percentile90,
        "null_largest": found.null_largest,
        "null_mean": found.null_mean,
        "dead": found.dead,
        "within_classes": inside.mean,
        "null_within_classes": inside.null_mean,
        "discriminant": together.value if together else nan,
        "null_discriminant": together.null if together else nan,
    }


class FeatureDrift(LayerMeasure):
    """How far local training moves the features of the same inputs (FedBR Prop. 3.1)."""

    name: ClassVar[str] = "drift"
    parts: ClassVar[tuple[str, ...]] = ("all", "seen", "unseen")

    def see(self, client: ClientView) -> None:
        seen = _seen_rows(client)
        of = {"all": torch.ones_like(seen), "seen": seen, "unseen": ~seen}
        before, after = (m.features(client.balanced) for m in (client.before, client.after))
        for layer in before:
            found = {part: _drift(after[layer], before[layer], of[part]) for part in self.parts}
            self.table(layer, "bal").add(client.cid, {}, {}, **found)

    def outcomes(self) -> Iterator[Outcome]:
        for (layer, data), table in self.tables.items():
            columns = table.result()
            result = {
                "clients": table.clients,
                **{part: columns_of(columns[part]) for part in self.parts},
                "mean": {part: means_of(columns[part]) for part in self.parts},
            }
            yield Outcome("both", layer, data, result, {"seen_at_least": SEEN})


def _drift(after: Tensor, before: Tensor, rows: Tensor) -> dict[str, float]:
    metrics = ("cosine", "relative", "cka", "procrustes", "null_cka")
    if (n := int(rows.sum())) < 2:
        return {**dict.fromkeys(metrics, nan), "n": n}
    found = asdict(feature_drift(after[rows], before[rows]))
    return {**{metric: found[metric] for metric in metrics}, "n": n}


class SetOverlap(LayerMeasure):
    """How little features tell classes a client has seen from those it has not (FedBR)."""

    name: ClassVar[str] = "overlap"

    def settings(self) -> dict[str, Any]:
        return {"seen_at_least": SEEN}

    def see(self, client: ClientView) -> None:
        seen = _seen_rows(client)
        n = min(int(seen.sum()), int((~seen).sum()))
        if n < 2:
            return
        sets = [rows.nonzero().flatten()[:n] for rows in (seen, ~seen)]
        unseen = client.balanced.y[~seen]
        before, after = (m.features(client.balanced) for m in (client.before, client.after))
        for layer, start in before.items():
            moved = after[layer]
            found = feature_collapse(
                (moved[sets[0]], moved[sets[1]]), (start[sets[0]], start[sets[1]])
            )
            self.table(layer, "bal").add(
                client.cid,
                _overlap(found.reference),
                _overlap(found.local),
                n=n,
                null_eta2=found.local.null_eta2,
                auc_noise=found.local.auc_noise,
                rho=found.rho,
                centroid_ratio=centroid_ratio(moved[~seen], start[~seen], unseen).value,
            )

    def outcomes(self) -> Iterator[Outcome]:
        for outcome in super().outcomes():
            for ratio in ("rho", "centroid_ratio"):
                outcome.result["mean"][ratio] = mean(outcome.result[ratio])
            yield outcome


def _overlap(found: Overlap) -> dict[str, float]:
    return {
        "eta2": found.eta2,
        "auc": found.auc,
        "a_distance": found.a_distance,
        "cross_neighbours": found.cross_neighbours,
        "energy": found.energy,
    }


def _seen_rows(client: ClientView) -> Tensor:
    """Which balanced rows are of classes that the client trains on."""
    return (client.train_counts >= SEEN)[client.balanced.y]
