"""Overlap: how little features tell classes a client has seen from those it has not (FedBR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from fedloom.analysis.overlap import (
    Overlap,
    centroid_ratio,
    collapse_of,
    linear_discrimination,
    overlap_of,
)
from fedloom.diagnose.charts import count_range, layer_table
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import LayerMeasure
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side, columns_of, mean, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import SEEN_AT_LEAST, ClientView
from fedloom.record import Number

T = TypeVar("T")


@dataclass(frozen=True)
class OverlapNumbers(Generic[T]):
    """How far apart features of seen and unseen classes are."""

    eta2: T
    """Share of the spread that lies between the two sets."""
    auc: T
    """Area under the curve of a linear discriminator; 0.5: nothing tells them apart."""
    a_distance: T
    cross_neighbours: T
    energy: T


@dataclass(frozen=True)
class OverlapMeans:
    """Over clients."""

    before: OverlapNumbers[Number]
    after: OverlapNumbers[Number]
    rho: Number
    centroid_ratio: Number


@dataclass(frozen=True)
class OverlapResult:
    """One layer, on as many balanced rows of seen as of unseen classes."""

    clients: Counts
    n: Counts
    """Rows of each set."""
    null_eta2: Column
    auc_noise: Column
    rho: Column
    """eta2 after over eta2 before: below 1, the sets collapse onto each other."""
    centroid_ratio: Column
    """The same between the unseen classes, by their centroids."""
    before: OverlapNumbers[Column]
    after: OverlapNumbers[Column]
    mean: OverlapMeans


@dataclass(frozen=True)
class _ClientRow:
    client: int
    n: int
    null_eta2: float
    auc_noise: float
    rho: float
    centroid_ratio: float
    before: OverlapNumbers[float]
    after: OverlapNumbers[float]


class OverlapMeasure(LayerMeasure[OverlapResult, _ClientRow]):
    """Leaves out clients with fewer than two rows of seen or of unseen classes."""

    data: ClassVar[str] = "bal"

    def settings(self) -> dict[str, Any]:
        return {"seen_at_least": SEEN_AT_LEAST}

    def see(self, client: ClientView) -> None:
        seen = client.seen_rows
        n = min(int(seen.sum()), int((~seen).sum()))
        if n < 2:
            return
        first, second = (rows.nonzero().flatten()[:n] for rows in (seen, ~seen))
        unseen_labels = client.balanced.y[~seen]
        before, after = (client.model(side) for side in SIDES)
        for layer in before.features(client.balanced):
            start, moved = (
                model.few_columns(client.balanced, layer).columns for model in (before, after)
            )
            reference, local = (
                overlap_of(near[first], near[second], linear_discrimination(z[first], z[second]))
                for near, z in (
                    (start, before.features(client.balanced)[layer]),
                    (moved, after.features(client.balanced)[layer]),
                )
            )
            collapse = collapse_of(local, reference)
            self.tables[layer].append(
                _ClientRow(
                    client=client.cid,
                    n=n,
                    null_eta2=collapse.local.null_eta2,
                    auc_noise=collapse.local.auc_noise,
                    rho=collapse.rho,
                    centroid_ratio=centroid_ratio(moved[~seen], start[~seen], unseen_labels).value,
                    before=_numbers(collapse.reference),
                    after=_numbers(collapse.local),
                )
            )

    def result(self, rows: list[_ClientRow]) -> OverlapResult:
        before, after = [row.before for row in rows], [row.after for row in rows]
        rho = tuple(row.rho for row in rows)
        centroids = tuple(row.centroid_ratio for row in rows)
        return OverlapResult(
            clients=tuple(row.client for row in rows),
            n=tuple(row.n for row in rows),
            null_eta2=tuple(row.null_eta2 for row in rows),
            auc_noise=tuple(row.auc_noise for row in rows),
            rho=rho,
            centroid_ratio=centroids,
            before=columns_of(before),
            after=columns_of(after),
            mean=OverlapMeans(means_of(before), means_of(after), mean(rho), mean(centroids)),
        )


def _numbers(overlap: Overlap) -> OverlapNumbers[float]:
    return OverlapNumbers(
        eta2=overlap.eta2,
        auc=overlap.auc,
        a_distance=overlap.a_distance,
        cross_neighbours=overlap.cross_neighbours,
        energy=overlap.energy,
    )


def _rows(overlap: Reading[OverlapResult]) -> list[Row]:
    means = overlap.result.mean
    numbers: dict[Side, float] = {"before": means.before.eta2, "after": means.after.eta2}
    reference = f"noise {short(mean(overlap.result.null_eta2))}"
    label = "seen apart from unseen, eta2"
    return [Row(label, overlap.layer, overlap.data, numbers, reference)]


TITLE = "Overlap of seen and unseen"
HEAD = ["told apart before", "after", "noise ±", "ratio of spreads", "rows of each set"]
NOTE = (
    "Area under the curve of seen against unseen classes, 0.5 if nothing tells them apart; a"
    " ratio of spreads below 1: they collapse."
)


def _cells(result: OverlapResult) -> list[Any]:
    means = result.mean
    return [
        *(means.before.auc, means.after.auc, mean(result.auc_noise), means.rho),
        count_range(result.n),
    ]


DIAGNOSTIC = Diagnostic(
    name="overlap",
    title=TITLE,
    order=60,
    measure=OverlapMeasure,
    result=OverlapResult,
    rows=_rows,
    chart=layer_table(TITLE, HEAD, _cells, NOTE),
)
