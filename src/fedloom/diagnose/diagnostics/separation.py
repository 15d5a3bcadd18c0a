"""Class-wise separation: the share of the features' spread between classes (DualFed Figure 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from fedloom.analysis.separation import Separation, plain_and_debiased_separation
from fedloom.diagnose.charts import bars, newest, over_rounds
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import LayerMeasure
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side, Sides, columns_of, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView
from fedloom.drawing.figures import Drawings, plain_table
from fedloom.drawing.html import Html, tag
from fedloom.record import Number

T = TypeVar("T")


@dataclass(frozen=True)
class SeparationNumbers(Generic[T]):
    """R² of one client's features."""

    value: T
    null: T
    """With shuffled labels."""
    debiased: T


@dataclass(frozen=True)
class SeparationResult:
    """One layer, on each client's own test rows."""

    clients: Counts
    n: Counts
    """Rows used."""
    classes: Counts
    """Classes used."""
    before: SeparationNumbers[Column]
    after: SeparationNumbers[Column]
    mean: Sides[SeparationNumbers[Number]]


@dataclass(frozen=True)
class _ClientRow:
    client: int
    n: int
    classes: int
    before: SeparationNumbers[float]
    after: SeparationNumbers[float]


class SeparationMeasure(LayerMeasure[SeparationResult, _ClientRow]):
    """Never over the features of several clients together."""

    data: ClassVar[str] = "local-test"

    def see(self, client: ClientView) -> None:
        if client.test is None:
            return
        y = client.test.y
        before, after = (client.model(side).features(client.test) for side in SIDES)
        for layer, z in before.items():
            start = plain_and_debiased_separation(z, y)
            end = plain_and_debiased_separation(after[layer], y)
            self.tables[layer].append(
                _ClientRow(
                    client=client.cid,
                    n=start[0].n,
                    classes=start[0].classes,
                    before=_numbers(*start),
                    after=_numbers(*end),
                )
            )

    def result(self, rows: list[_ClientRow]) -> SeparationResult:
        before, after = [row.before for row in rows], [row.after for row in rows]
        return SeparationResult(
            clients=tuple(row.client for row in rows),
            n=tuple(row.n for row in rows),
            classes=tuple(row.classes for row in rows),
            before=columns_of(before),
            after=columns_of(after),
            mean=Sides(means_of(before), means_of(after)),
        )


def _numbers(plain: Separation, debiased: Separation) -> SeparationNumbers[float]:
    return SeparationNumbers(plain.value, plain.null, debiased.value)


def _rows(separation: Reading[SeparationResult]) -> list[Row]:
    mean = separation.result.mean
    numbers = {side: mean[side].value for side in SIDES}
    reference = f"noise {short(mean.after.null)}"
    return [Row("separation, R2", separation.layer, separation.data, numbers, reference)]


def _chart(name: str, readings: list[Reading[SeparationResult]], drawings: Drawings) -> Html:
    last = newest(readings)
    head = [
        *("layer", "before", "after", "shuffled before", "shuffled after"),
        *("debiased before", "debiased after"),
    ]
    rows = [
        [
            separation.layer,
            *(separation.result.mean[side].value for side in SIDES),
            *(separation.result.mean[side].null for side in SIDES),
            *(separation.result.mean[side].debiased for side in SIDES),
        ]
        for separation in last
    ]
    chart = drawings.figure(
        name,
        f"{DIAGNOSTIC.title}, round {last[0].round}",
        {
            "kind": "bars",
            "ylabel": "R²",
            "groups": [separation.layer for separation in last],
            "series": [_bars(side, [separation.result for separation in last]) for side in SIDES],
            "references": [],
        },
        plain_table(f"{name}-table", "Mean over clients", head, rows),
        "Share of the spread that lies between classes, on clients' own test rows.",
    )
    curve = over_rounds(
        name,
        "Separation over rounds",
        "R²",
        readings,
        drawings,
        lambda separation, side: separation.result.mean[side].value,
    )
    return tag("div", chart, curve, class_="flat")


def _bars(side: Side, layers: list[SeparationResult]) -> dict[str, Any]:
    clients = [(layer.before if side == "before" else layer.after).value for layer in layers]
    return bars(side, [layer.mean[side].value for layer in layers], clients)


DIAGNOSTIC = Diagnostic(
    name="separation",
    title="Class-wise separation",
    order=30,
    measure=SeparationMeasure,
    result=SeparationResult,
    rows=_rows,
    chart=_chart,
)
