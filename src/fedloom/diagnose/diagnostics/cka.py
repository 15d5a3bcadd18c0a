"""CKA: how alike two clients' features of the same inputs are (DualFed Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.cka import plain_and_debiased_cka
from fedloom.diagnose.charts import newest, over_rounds
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import Measure, Options, Outcome, Skipped
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.record import Number


@dataclass(frozen=True)
class CkaResult:
    """Linear CKA over pairs of clients, of one layer, before or after local training."""

    clients: Counts
    matrix: tuple[Column, ...]
    """As the clients, ones on the diagonal."""
    mean: Number
    smallest: Number
    largest: Number
    null: Number
    """Mean CKA if the rows of one side are shuffled."""
    debiased_mean: Number
    n: int
    """Rows."""


class CkaMeasure(Measure[CkaResult]):
    """Keeps the inner products of the balanced rows of every client."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._grams: dict[tuple[str, Side], dict[int, Tensor]] = {}

    def see(self, client: ClientView) -> None:
        for side in SIDES:
            model = client.model(side)
            for layer in model.features(client.balanced):
                gram = model.few_columns(client.balanced, layer).gram
                self._grams.setdefault((layer, side), {})[client.cid] = gram

    def outcomes(self) -> Iterator[Outcome[CkaResult]]:
        for (layer, side), grams in self._grams.items():
            yield Outcome(side, layer, "bal", _result(grams), {"debiased": False})


def _result(grams: dict[int, Tensor]) -> CkaResult | Skipped:
    if len(grams) < 2:
        return Skipped("CKA compares clients with each other, and only one has this layer")
    plain, debiased = plain_and_debiased_cka(list(grams.values()))
    first, second = torch.triu_indices(len(grams), len(grams), 1)
    pairs = plain.matrix[first, second]
    return CkaResult(
        clients=tuple(grams),
        matrix=tuple(map(tuple, plain.matrix.tolist())),
        mean=plain.mean,
        smallest=float(pairs.min()),
        largest=float(pairs.max()),
        null=plain.null,
        debiased_mean=debiased.mean,
        n=plain.n,
    )


def _rows(cka: Reading[CkaResult]) -> list[Row]:
    reference = f"unrelated: {short(cka.result.null)}"
    side: Side = "before" if cka.snapshot == "before" else "after"
    return [Row(DIAGNOSTIC.title, cka.layer, cka.data, {side: cka.result.mean}, reference)]


def _chart(name: str, readings: list[Reading[CkaResult]], drawings: Drawings) -> Html:
    few = any(map(_few_rows, readings))

    def value(cka: Reading[CkaResult], side: Side) -> float | None:
        if cka.snapshot != side:
            return None
        return cka.result.debiased_mean if few else cka.result.mean

    return tag(
        "div",
        _heat(name, newest(readings), drawings),
        over_rounds(
            name,
            "CKA between clients over rounds" + (", debiased" if few else ""),
            "debiased CKA" if few else "CKA",
            readings,
            drawings,
            value,
        ),
        class_="flat",
    )


def _heat(name: str, readings: list[Reading[CkaResult]], drawings: Drawings) -> Html:
    frames = [
        {
            "name": f"{cka.layer}, {cka.snapshot}",
            "rows": list(map(str, cka.result.clients)),
            "cols": list(map(str, cka.result.clients)),
            "values": [[rounded(v, 3) for v in row] for row in cka.result.matrix],
        }
        for cka in readings
    ]
    head = [
        *("layer", "model", "mean", "shuffled rows", "debiased mean", "smallest", "largest"),
        *("rows", "width"),
    ]
    rows = [
        [
            *(cka.layer, cka.snapshot, cka.result.mean, cka.result.null),
            *(cka.result.debiased_mean, cka.result.smallest, cka.result.largest),
            *(cka.result.n, cka.settings["width"]),
        ]
        for cka in readings
    ]
    return drawings.figure(
        name,
        f"{DIAGNOSTIC.title}, round {readings[0].round}",
        {
            "kind": "heat",
            "xlabel": "client",
            "ylabel": "client",
            "max": 1.0,
            "digits": 2,
            "frames": frames,
            "choose": "layer and model",
        },
        plain_table(f"{name}-table", "Linear CKA over pairs of clients", head, rows),
        "1: two clients' features are alike on the same rows. With fewer rows than ten times the"
        " width, CKA is high whatever the features; then hold it against that of shuffled rows, or"
        " read the debiased mean, which is 0 for those.",
    )


def _few_rows(cka: Reading[CkaResult]) -> bool:
    """So few for the width that plain CKA is mostly bias."""
    width = cka.settings["width"]
    widest = max(width) if isinstance(width, list) else width
    return bool(cka.result.n < 10 * widest)


DIAGNOSTIC = Diagnostic(
    name="cka",
    title="CKA between clients",
    order=20,
    measure=CkaMeasure,
    result=CkaResult,
    rows=_rows,
    chart=_chart,
)
