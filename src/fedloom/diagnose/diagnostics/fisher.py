"""Fisher ratio: how far a client's features lie from the other clients' (DBE appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import nan
from operator import add
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from fedloom.analysis.fisher_ratio import (
    discriminant,
    fisher,
    fisher_of_classes,
    moments_of_classes,
)
from fedloom.diagnose.charts import count_range, layer_table
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import LayerMeasure
from fedloom.diagnose.per_client import SIDES, Column, Counts, Sides, columns_of, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView
from fedloom.record import Number

T = TypeVar("T")

WIDEST_DISCRIMINANT = 512
"""A layer's covariance is inverted up to this width."""


@dataclass(frozen=True)
class FisherNumbers(Generic[T]):
    """Ratios of one client's features and the others' over dimensions; `null_...` is what two sets
    of rows of one law would give."""

    largest: T
    mean: T
    percentile90: T
    null_largest: T
    null_mean: T
    dead: T
    """Dimensions in which nothing varies."""
    within_classes: T
    """Mean over dimensions of the ratios class by class."""
    null_within_classes: T
    discriminant: T
    """Of all dimensions together."""
    null_discriminant: T


@dataclass(frozen=True)
class FisherResult:
    """One layer, on each client's own test rows against the others', through the client's model."""

    clients: Counts
    n: tuple[tuple[int, int], ...]
    """Own rows and others'."""
    before: FisherNumbers[Column]
    after: FisherNumbers[Column]
    mean: Sides[FisherNumbers[Number]]


@dataclass(frozen=True)
class _ClientRow:
    client: int
    n: tuple[int, int]
    before: FisherNumbers[float]
    after: FisherNumbers[float]


class FisherMeasure(LayerMeasure[FisherResult, _ClientRow]):
    """Both sets of rows go through the client's own model."""

    data: ClassVar[str] = "local-test"

    def settings(self) -> dict[str, Any]:
        return {"reference": "other clients' test rows"}

    def see(self, client: ClientView) -> None:
        others = client.pool.owners != client.cid
        if client.test is None or len(client.test) < 2 or int(others.sum()) < 2:
            return
        y_own, y_others = client.test.y, client.pool.y[others]
        own_before, own_after = (client.model(side).features(client.test) for side in SIDES)
        all_before, all_after = (client.model(side).features(client.pool) for side in SIDES)
        for layer in own_before:
            row = _ClientRow(
                client=client.cid,
                n=(len(y_own), len(y_others)),
                before=_numbers(
                    own_before[layer], y_own, all_before[layer][others], y_others, client.classes
                ),
                after=_numbers(
                    own_after[layer], y_own, all_after[layer][others], y_others, client.classes
                ),
            )
            self.tables[layer].append(row)

    def result(self, rows: list[_ClientRow]) -> FisherResult:
        before, after = [row.before for row in rows], [row.after for row in rows]
        return FisherResult(
            clients=tuple(row.client for row in rows),
            n=tuple(row.n for row in rows),
            before=columns_of(before),
            after=columns_of(after),
            mean=Sides(means_of(before), means_of(after)),
        )


def _numbers(
    own: Tensor, y_own: Tensor, others: Tensor, y_others: Tensor, classes: int
) -> FisherNumbers[float]:
    own, others = own.double(), others.double()
    first, second = (
        moments_of_classes(z, y, classes) for z, y in ((own, y_own), (others, y_others))
    )
    ratios = fisher(*(reduce(add, moments.values()) for moments in (first, second)))
    by_class = fisher_of_classes(first, second, classes)
    joint = discriminant(own, others) if own.shape[1] <= WIDEST_DISCRIMINANT else None
    return FisherNumbers(
        largest=ratios.largest,
        mean=ratios.mean,
        percentile90=ratios.percentile90,
        null_largest=ratios.null_largest,
        null_mean=ratios.null_mean,
        dead=ratios.dead,
        within_classes=by_class.mean,
        null_within_classes=by_class.null_mean,
        discriminant=joint.value if joint else nan,
        null_discriminant=joint.null if joint else nan,
    )


def _rows(reading: Reading[FisherResult]) -> list[Row]:
    mean = reading.result.mean
    numbers = {side: mean[side].largest for side in SIDES}
    reference = f"noise {short(mean.after.null_largest)}"
    return [Row("Fisher ratio, largest", reading.layer, reading.data, numbers, reference)]


TITLE = "Fisher ratio"
HEAD = [
    *("mean before", "after", "noise"),
    *("largest before", "after", "noise"),
    *("within classes before", "after", "noise"),
    *("own rows", "others' rows"),
]
NOTE = (
    "How far a client's features lie from the others', in their own spread: in the mean and in"
    " the largest dimension, and within classes. Noise: what rows of one law would give."
)


def _cells(result: FisherResult) -> list[Any]:
    before, after = result.mean.before, result.mean.after
    return [
        *(before.mean, after.mean, after.null_mean),
        *(before.largest, after.largest, after.null_largest),
        *(before.within_classes, after.within_classes, after.null_within_classes),
        count_range([own for own, _ in result.n]),
        count_range([others for _, others in result.n]),
    ]


DIAGNOSTIC = Diagnostic(
    name="fisher",
    title=TITLE,
    order=40,
    measure=FisherMeasure,
    result=FisherResult,
    rows=_rows,
    chart=layer_table(TITLE, HEAD, _cells, NOTE),
)
