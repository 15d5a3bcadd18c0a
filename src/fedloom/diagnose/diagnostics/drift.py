"""Drift: how far local training moves the features of the same inputs (FedBR Prop. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fedloom.analysis.drift import RowDrift, drift_of, row_drift
from fedloom.analysis.geometry import FewColumns
from fedloom.diagnose.charts import count_range, layer_table
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import LayerMeasure
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side, columns_of, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import SEEN_AT_LEAST, ClientView
from fedloom.record import Number

Numbers = TypeVar("Numbers")
Count = TypeVar("Count")


@dataclass(frozen=True)
class DriftNumbers(Generic[Numbers, Count]):
    """Distances between a client's features before and after local training."""

    cosine: Numbers
    relative: Numbers
    """Squared distance over the spread before."""
    cka: Numbers
    """1 - CKA."""
    procrustes: Numbers
    null_cka: Numbers
    """1 - CKA if there is no relation at all."""
    n: Count
    """Rows."""


@dataclass(frozen=True)
class DriftMeans:
    """Over clients."""

    all: DriftNumbers[Number, Number]
    seen: DriftNumbers[Number, Number]
    unseen: DriftNumbers[Number, Number]


@dataclass(frozen=True)
class DriftResult:
    """One layer, on balanced rows: all of them, those of classes that a client trains on, and those
    of other classes."""

    clients: Counts
    all: DriftNumbers[Column, Counts]
    seen: DriftNumbers[Column, Counts]
    unseen: DriftNumbers[Column, Counts]
    mean: DriftMeans


@dataclass(frozen=True)
class _ClientRow:
    client: int
    all: DriftNumbers[float, int]
    seen: DriftNumbers[float, int]
    unseen: DriftNumbers[float, int]


class DriftMeasure(LayerMeasure[DriftResult, _ClientRow]):
    """Compares each client's two models row by row."""

    data: ClassVar[str] = "bal"

    def settings(self) -> dict[str, Any]:
        return {"seen_at_least": SEEN_AT_LEAST}

    def see(self, client: ClientView) -> None:
        seen = client.seen_rows
        before, after = (client.model(side) for side in SIDES)
        starts, moves = (model.features(client.balanced) for model in (before, after))
        for layer, start in starts.items():
            rows = row_drift(moves[layer], start)
            old, new = (model.few_columns(client.balanced, layer) for model in (before, after))
            self.tables[layer].append(
                _ClientRow(
                    client=client.cid,
                    all=_numbers(new, old, rows, torch.ones_like(seen)),
                    seen=_numbers(new, old, rows, seen),
                    unseen=_numbers(new, old, rows, ~seen),
                )
            )

    def result(self, rows: list[_ClientRow]) -> DriftResult:
        whole = [row.all for row in rows]
        seen, unseen = [row.seen for row in rows], [row.unseen for row in rows]
        return DriftResult(
            clients=tuple(row.client for row in rows),
            all=columns_of(whole),
            seen=columns_of(seen),
            unseen=columns_of(unseen),
            mean=DriftMeans(means_of(whole), means_of(seen), means_of(unseen)),
        )


def _numbers(
    moved: FewColumns, start: FewColumns, rows: RowDrift, among: Tensor
) -> DriftNumbers[float, int]:
    if (n := int(among.sum())) < 2:
        return DriftNumbers(nan, nan, nan, nan, nan, n)
    drift = drift_of(moved.among(among), start.among(among), rows[among])
    return DriftNumbers(
        cosine=drift.cosine,
        relative=drift.relative,
        cka=drift.cka,
        procrustes=drift.procrustes,
        null_cka=drift.null_cka,
        n=n,
    )


def _rows(drift: Reading[DriftResult]) -> list[Row]:
    mean = drift.result.mean
    unseen = f"on unseen classes: {short(mean.unseen.cosine)}"
    numbers: dict[Side, float] = {"before": 0.0, "after": mean.all.cosine}
    return [Row("cosine drift", drift.layer, drift.data, numbers, unseen)]


TITLE = "Drift"
HEAD = [
    *("seen classes", "unseen classes", "one less CKA", "if unrelated"),
    *("seen rows", "unseen rows"),
]
NOTE = (
    "Cosine distance that local training moves a row of a seen or an unseen class; over all"
    " rows one less CKA, beside that of unrelated features."
)


def _cells(result: DriftResult) -> list[Any]:
    mean = result.mean
    return [
        *(mean.seen.cosine, mean.unseen.cosine, mean.all.cka, mean.all.null_cka),
        *(count_range(result.seen.n), count_range(result.unseen.n)),
    ]


DIAGNOSTIC = Diagnostic(
    name="drift",
    title=TITLE,
    order=50,
    measure=DriftMeasure,
    result=DriftResult,
    rows=_rows,
    chart=layer_table(TITLE, HEAD, _cells, NOTE),
)
