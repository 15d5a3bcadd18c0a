"""Ellipses: classes as Gaussians in one plane for all clients and both snapshots (FedCR Fig. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.analysis.ellipses import ClassEllipses, class_ellipses
from fedloom.analysis.geometry import principal_components
from fedloom.diagnose.charts import each_layer
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.per_client import Counts, Side
from fedloom.diagnose.pictures import (
    MOST_POINTS,
    ClientFeatures,
    Picture,
    Point,
    coordinates,
    points_of,
)
from fedloom.diagnose.rows import Row, short
from fedloom.drawing.figures import Drawings, plain_table, rounded, thinned
from fedloom.drawing.html import Html
from fedloom.record import Number

COVERAGE = 0.95
MOST_CLIENTS = 12
"""On the page."""

# ------------------------------------------------------------------ result


@dataclass(frozen=True)
class Ellipse:
    """One class of one client."""

    label: int
    n: int
    """Rows."""
    mean: Point
    half_axes: Point | None
    """The longer first; None of a single row."""
    angle: Number
    """Of the longer axis, in radians."""


@dataclass(frozen=True)
class EllipsePanel:
    """One client's rows before or after local training."""

    client: int
    snapshot: Side
    points: tuple[Point, ...]
    labels: Counts
    ellipses: tuple[Ellipse, ...]


@dataclass(frozen=True)
class EllipsesResult:
    """One layer in the plane."""

    explained: Number
    """Share of the variance that the plane shows."""
    panels: tuple[EllipsePanel, ...]


# ------------------------------------------------------------------ measure


class EllipsesMeasure(Picture[EllipsesResult]):
    """Features of two dimensions are shown as they are, wider ones in their first two principal
    components over all panels."""

    def drawn(self, shown: list[ClientFeatures]) -> tuple[EllipsesResult, dict[str, Any]]:
        rows, explained = torch.cat([one.features for one in shown]).double(), 1.0
        if rows.shape[1] > 2:
            rows, explained = principal_components(rows, 2)
        planes = torch.split(rows, [len(one.labels) for one in shown])
        panels = tuple(self._panel(one, plane) for one, plane in zip(shown, planes, strict=True))
        return EllipsesResult(explained, panels), {"coverage": COVERAGE}

    def _panel(self, shown: ClientFeatures, plane: Tensor) -> EllipsePanel:
        of_classes = class_ellipses(plane, shown.labels, self.snapshots.data.classes, COVERAGE)
        held = of_classes.counts.nonzero().flatten().tolist()
        return EllipsePanel(
            client=shown.client,
            snapshot=shown.side,
            points=points_of(plane),
            labels=tuple(shown.labels.tolist()),
            ellipses=tuple(_ellipse(of_classes, label) for label in held),
        )


def _ellipse(of_classes: ClassEllipses, label: int) -> Ellipse:
    n = int(of_classes.counts[label])
    x, y = of_classes.means[label].tolist()
    longer, shorter = of_classes.half_axes[label].tolist()
    return Ellipse(
        label=label,
        n=n,
        mean=(x, y),
        half_axes=(longer, shorter) if n > 1 else None,
        angle=float(of_classes.angles[label]),
    )


# ------------------------------------------------------------------ terminal


def _rows(ellipses: Reading[EllipsesResult]) -> list[Row]:
    share = f"the plane shows {short(100 * ellipses.result.explained)} % of the variance"
    return [Row("classes as ellipses", ellipses.layer, ellipses.data, {}, share)]


# ------------------------------------------------------------------ report


def _figure(name: str, ellipses: Reading[EllipsesResult], drawings: Drawings) -> Html:
    """For every client, its features before and after with an ellipse for each class."""
    panels = ellipses.result.panels[: 2 * MOST_CLIENTS]
    most = max(20, MOST_POINTS // max(1, len(panels)))
    views = [
        {
            "name": f"client {client}",
            "panels": [_drawn(panel, most) for panel in panels if panel.client == client],
        }
        for client in dict.fromkeys(panel.client for panel in panels)
    ]
    rows = [
        [
            *(panel.client, panel.snapshot, ellipse.label, ellipse.n, *ellipse.mean),
            *(ellipse.half_axes or (None, None)),
        ]
        for panel in panels
        for ellipse in panel.ellipses
    ]
    head = ["client", "model", "class", "rows", "mean x", "mean y", "half axis", "half axis"]
    coverage = ellipses.settings["coverage"]
    return drawings.figure(
        name,
        f"Features of {ellipses.layer} in the plane, round {ellipses.round}",
        {"kind": "scatter", "shapes": [], "views": views, "choose": "client", "equal": True},
        plain_table(f"{name}-table", "Gaussians of the classes", head, rows),
        f"Ellipses hold {100 * coverage:.0f} % of a class."
        f" {100 * ellipses.result.explained:.0f} % of the variance lies in this plane.",
    )


def _drawn(panel: EllipsePanel, most: int) -> dict[str, Any]:
    """A panel as the page's script takes it."""
    return {
        "name": f"{panel.snapshot} local training",
        "points": [
            [*coordinates(panel.points[i]), panel.labels[i], panel.client]
            for i in thinned(len(panel.points), most)
        ],
        "ellipses": [
            [
                *coordinates(ellipse.mean),
                *coordinates(ellipse.half_axes),
                rounded(ellipse.angle),
                ellipse.label,
            ]
            for ellipse in panel.ellipses
            if ellipse.half_axes is not None
        ],
    }


DIAGNOSTIC = Diagnostic(
    name="ellipses",
    title="Classes as ellipses",
    order=110,
    measure=EllipsesMeasure,
    result=EllipsesResult,
    rows=_rows,
    chart=each_layer(_figure),
)
