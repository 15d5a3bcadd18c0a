"""Pictures of the representation: one t-SNE of all, and Gaussians of classes in a plane."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.analysis.ellipses import ClassEllipses, class_ellipses
from fedloom.analysis.geometry import principal_components
from fedloom.analysis.neighbours import (
    NEIGHBOURS,
    neighbour_purity,
    purity_within_classes,
    silhouette,
)
from fedloom.analysis.tsne import FEWEST_ROWS, Panel, joint_tsne, pick_rows
from fedloom.diagnose.measures.base import Measure, Options, Outcome
from fedloom.diagnose.snapshots import ClientView, Snapshots

MOST_ROWS = 600
"""Of all clients together in one snapshot."""
MOST_ROWS_OF_A_CLIENT = 100
WHEN = ("before", "after")
DECIMALS = 4
COVERAGE = 0.95

Drawn = tuple[dict[str, Any], dict[str, Any]]
"""Result and settings."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The rows of one client in one snapshot."""

    client: int
    snapshot: str
    features: Tensor
    labels: Tensor


class Picture(Measure):
    """Collects some of every client's own test rows, the same before and after."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._shown: dict[str, list[Shown]] = {}
        self._most = min(MOST_ROWS_OF_A_CLIENT, max(1, MOST_ROWS // len(snapshots.ids)))

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        rows = pick_rows(client.test.y, self._most)
        y = client.test.y[rows]
        for layer in client.representations:
            for when in WHEN:
                z = getattr(client, when).features(client.test)[layer][rows]
                self._shown.setdefault(layer, []).append(Shown(client.cid, when, z, y))

    def outcomes(self) -> Iterator[Outcome]:
        for layer, shown in self._shown.items():
            if why := _not_to_be_shown(shown):
                result, settings = {"skipped": why}, dict[str, Any]()
            else:
                result, settings = self.drawn(shown)
            yield Outcome("both", layer, "local-test", result, settings)

    @abstractmethod
    def drawn(self, shown: list[Shown]) -> Drawn:
        """The picture of one layer."""


def _not_to_be_shown(shown: list[Shown]) -> str:
    widths = {one.features.shape[1] for one in shown}
    if len(widths) > 1:
        return "clients have different networks, whose features have no common plane"
    if widths == {1}:
        return "features of one dimension make no plane"
    few = sum(len(one.labels) for one in shown) < FEWEST_ROWS
    return f"a picture needs {FEWEST_ROWS} test rows or more" if few else ""


class JointEmbedding(Picture):
    """All clients and both snapshots in one t-SNE (DBE Figures 1 and 3), with its numbers."""

    name: ClassVar[str] = "tsne"

    def drawn(self, shown: list[Shown]) -> Drawn:
        found = joint_tsne([Panel(s.features, s.labels, s.client, s.snapshot) for s in shown])
        result = {
            "points": _rounded(found.points),
            "labels": found.labels.tolist(),
            "clients": found.clients.tolist(),
            "snapshots": list(found.snapshots),
            "n": found.n,
            "different_rows": found.different_rows,
            "explained": found.explained,
            "divergence": found.divergence,
            "iterations": found.iterations,
            **_neighbourhood(shown),
        }
        used = asdict(found.settings)
        wanted = ("perplexity", "components", "early_exaggeration", "angle")
        return result, {key: used[key] for key in wanted}


def _neighbourhood(shown: list[Shown]) -> dict[str, Any]:
    """Whose neighbours rows are in the original space, before and after."""
    purity: dict[str, dict[str, Any]] = {}
    apart: dict[str, dict[str, float]] = {}
    for when in WHEN:
        own = [one for one in shown if one.snapshot == when]
        z = torch.cat([one.features for one in own])
        labels = torch.cat([one.labels for one in own])
        clients = torch.cat([torch.full_like(one.labels, one.client) for one in own])
        found = {
            "client": neighbour_purity(z, clients),
            "label": neighbour_purity(z, labels),
            "client_within_class": purity_within_classes(z, clients, labels),
        }
        for by, value in found.items():
            purity.setdefault(by, {})[when] = value.value
            purity[by] |= {"null": value.null, "k": NEIGHBOURS}
        for by, groups in (("client", clients), ("label", labels)):
            apart.setdefault(by, {})[when] = silhouette(z, groups)
    return {"purity": purity, "silhouette": apart}


class Gaussians(Picture):
    """Classes as Gaussians in one plane for all clients and both snapshots (FedCR Figure 2)."""

    name: ClassVar[str] = "ellipses"

    def drawn(self, shown: list[Shown]) -> Drawn:
        rows, explained = torch.cat([one.features for one in shown]).double(), 1.0
        if rows.shape[1] > 2:
            rows, explained = principal_components(rows, 2)
        planes = torch.split(rows, [len(one.labels) for one in shown])
        panels = [self._panel(*both) for both in zip(shown, planes, strict=True)]
        return {"explained": explained, "panels": panels}, {"coverage": COVERAGE}

    def _panel(self, one: Shown, plane: Tensor) -> dict[str, Any]:
        classes = self.snapshots.data.classes
        found = class_ellipses(plane, one.labels, classes, COVERAGE)
        held = found.counts.nonzero().flatten().tolist()
        return {
            "client": one.client,
            "snapshot": one.snapshot,
            "points": _rounded(plane),
            "labels": one.labels.tolist(),
            "ellipses": [_ellipse(found, label) for label in held],
        }


def _ellipse(found: ClassEllipses, label: int) -> dict[str, Any]:
    n = int(found.counts[label])
    return {
        "label": label,
        "n": n,
        "mean": found.means[label].tolist(),
        "half_axes": found.half_axes[label].tolist() if n > 1 else None,
        "angle": float(found.angles[label]),
    }


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(value, DECIMALS) for value in point] for point in points.tolist()]
