"""t-SNE: all clients' features in one map, before and after (DBE Figures 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fedloom.analysis.neighbours import (
    NEIGHBOURS,
    neighbour_purity,
    purity_within_classes,
    silhouette,
)
from fedloom.analysis.tsne import Panel, joint_tsne
from fedloom.diagnose.charts import each_layer
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.per_client import SIDES, Counts, Side, Sides
from fedloom.diagnose.pictures import (
    MOST_POINTS,
    ClientFeatures,
    Picture,
    Point,
    coordinates,
    points_of,
)
from fedloom.diagnose.rows import Row, short
from fedloom.drawing.figures import Drawings, plain_table, thinned
from fedloom.drawing.html import Html
from fedloom.record import Number

SHAPES = 8
"""That the page's script can draw."""

# ------------------------------------------------------------------ result

Likeness = Literal["client", "label", "client_within_class"]
"""What neighbours may have in common."""


@dataclass(frozen=True)
class NeighbourPurity:
    """Share of a row's neighbours that are alike, in the original space."""

    before: Number
    after: Number
    null: Number
    """By chance."""
    k: int
    """Neighbours."""


@dataclass(frozen=True)
class TsneResult:
    """One layer: a point for every row of every client, before and after."""

    points: tuple[Point, ...]
    labels: Counts
    clients: Counts
    snapshots: tuple[Side, ...]
    n: int
    """Points."""
    different_rows: int
    """Rows embedded; equal rows share a point."""
    explained: Number
    """Share of the variance in the principal components that were embedded."""
    divergence: Number
    iterations: int
    purity: Mapping[Likeness, NeighbourPurity]
    silhouette: Mapping[Literal["client", "label"], Sides[Number]]


# ------------------------------------------------------------------ measure


class TsneMeasure(Picture[TsneResult]):
    """One embedding for all, because only points of one embedding can be compared."""

    def drawn(self, shown: list[ClientFeatures]) -> tuple[TsneResult, dict[str, Any]]:
        embedding = joint_tsne([Panel(s.features, s.labels, s.client, s.side) for s in shown])
        sides = {side: [one for one in shown if one.side == side] for side in SIDES}
        before, after = (_neighbourhood(sides[side]) for side in SIDES)
        result = TsneResult(
            points=points_of(embedding.points),
            labels=tuple(embedding.labels.tolist()),
            clients=tuple(embedding.clients.tolist()),
            snapshots=tuple(one.side for one in shown for _ in one.labels),
            n=embedding.n,
            different_rows=embedding.different_rows,
            explained=embedding.explained,
            divergence=embedding.divergence,
            iterations=embedding.iterations,
            purity={
                likeness: NeighbourPurity(
                    before.purity[likeness], after.purity[likeness], null, NEIGHBOURS
                )
                for likeness, null in after.by_chance.items()
            },
            silhouette={
                "client": Sides(before.client_silhouette, after.client_silhouette),
                "label": Sides(before.label_silhouette, after.label_silhouette),
            },
        )
        used = embedding.settings
        settings = {
            "perplexity": used.perplexity,
            "components": used.components,
            "early_exaggeration": used.early_exaggeration,
            "angle": used.angle,
        }
        return result, settings


@dataclass(frozen=True)
class _Neighbourhood:
    purity: dict[Likeness, float]
    by_chance: dict[Likeness, float]
    client_silhouette: float
    label_silhouette: float


def _neighbourhood(shown: list[ClientFeatures]) -> _Neighbourhood:
    """Whose neighbours rows are in the original space."""
    z = torch.cat([one.features for one in shown])
    labels = torch.cat([one.labels for one in shown])
    clients = torch.cat([torch.full_like(one.labels, one.client) for one in shown])
    by_client, by_label = neighbour_purity(z, clients), neighbour_purity(z, labels)
    within = purity_within_classes(z, clients, labels)
    return _Neighbourhood(
        purity={
            "client": by_client.value,
            "label": by_label.value,
            "client_within_class": within.value,
        },
        by_chance={
            "client": by_client.null,
            "label": by_label.null,
            "client_within_class": within.null,
        },
        client_silhouette=silhouette(z, clients),
        label_silhouette=silhouette(z, labels),
    )


# ------------------------------------------------------------------ terminal


def _rows(tsne: Reading[TsneResult]) -> list[Row]:
    purity = tsne.result.purity["client_within_class"]
    numbers: dict[Side, float] = {"before": purity.before, "after": purity.after}
    reference = f"mixed: {short(purity.null)}"
    return [Row("own client's neighbours", tsne.layer, tsne.data, numbers, reference)]


# ------------------------------------------------------------------ report


def _figure(name: str, tsne: Reading[TsneResult], drawings: Drawings) -> Html:
    """The points before and after in panels of their own."""
    result = tsne.result
    shown = thinned(len(result.points), MOST_POINTS)
    panels = [
        {
            "name": f"{side} local training",
            "points": [
                [*coordinates(result.points[i]), result.labels[i], result.clients[i]]
                for i in shown
                if result.snapshots[i] == side
            ],
            "ellipses": [],
        }
        for side in SIDES
    ]
    rows = [
        [likeness.replace("_", " "), purity.before, purity.after, purity.null]
        for likeness, purity in result.purity.items()
    ]
    head = ["share of neighbours alike in", "before", "after", "by chance"]
    shapes = sorted(set(result.clients))
    repeat = (
        " There are more clients than shapes, so shapes repeat." if len(shapes) > SHAPES else ""
    )
    return drawings.figure(
        name,
        f"{DIAGNOSTIC.title} of {tsne.layer}, round {tsne.round}",
        {"kind": "scatter", "shapes": shapes, "views": [{"name": "", "panels": panels}]},
        plain_table(f"{name}-table", "Purity of neighbourhoods in the original space", head, rows),
        "Colour is the label, shape the client; distances between clusters mean little." + repeat,
    )


DIAGNOSTIC = Diagnostic(
    name="tsne",
    title="t-SNE",
    order=100,
    measure=TsneMeasure,
    result=TsneResult,
    rows=_rows,
    chart=each_layer(_figure),
)
