"""Classifier bias: where rows of classes that a client has never seen go (FedBR Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fedloom.analysis.class_bias import classifier_bias, prior_agreement
from fedloom.diagnose.charts import newest
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import Measure, Options, Outcome
from fedloom.diagnose.per_client import SIDES, Column, Counts, Side, Sides, by_field, mean, means_of
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html
from fedloom.record import Number

SEEN_AT_LEAST = (1, 10)
"""Training rows that make a class a seen one: both are reported."""

# ------------------------------------------------------------------ result


@dataclass(frozen=True)
class BiasNumbers:
    """Of one client, or means over clients; the first nine are NaN where every class was seen."""

    seen_mass: Number
    """Share of rows of unseen classes that are taken for a seen one."""
    seen_mass_soft: Number
    seen_mass_noise: Number
    entropy: Number
    distance_to_labels: Number
    distance_noise: Number
    unseen_recall: Number
    seen_recall: Number
    seen_recall_restricted: Number
    prior_correlation: Number
    """Of predictions on all rows with the client's own label counts."""
    prior_divergence: Number
    distance_to_uniform: Number
    uniform_noise: Number


@dataclass(frozen=True)
class BiasColumns:
    """The numbers of all clients, and of each client the shares of the classes."""

    seen_mass: Column
    seen_mass_soft: Column
    seen_mass_noise: Column
    entropy: Column
    distance_to_labels: Column
    distance_noise: Column
    unseen_recall: Column
    seen_recall: Column
    seen_recall_restricted: Column
    prior_correlation: Column
    prior_divergence: Column
    distance_to_uniform: Column
    uniform_noise: Column
    predicted: tuple[Column, ...]
    """Of rows of unseen classes."""
    mean_softmax: tuple[Column, ...]
    """Of rows of unseen classes."""
    predicted_all: tuple[Column, ...]
    """Of all rows."""


@dataclass(frozen=True)
class BiasResult:
    """On balanced rows."""

    clients: Counts
    seen: tuple[Counts, ...]
    """Of each client and class: 1 or 0."""
    train_counts: tuple[Counts, ...]
    blind: Column
    """Share of classes that were seen, which a uniform guess would give."""
    n_unseen: Counts
    n_seen: Counts
    before: BiasColumns
    after: BiasColumns
    mean: Sides[BiasNumbers]
    classes: int
    class_names: tuple[str, ...]

    def side(self, side: Side) -> BiasColumns:
        """Before or after local training."""
        return self.before if side == "before" else self.after


# ------------------------------------------------------------------ measure


@dataclass(frozen=True)
class _Shares:
    predicted: Column
    mean_softmax: Column
    predicted_all: Column


@dataclass(frozen=True)
class _Bias:
    numbers: BiasNumbers
    shares: _Shares


@dataclass(frozen=True)
class _ClientRow:
    client: int
    seen: Counts
    train_counts: Counts
    blind: float
    n_unseen: int
    n_seen: int
    before: _Bias
    after: _Bias


class BiasMeasure(Measure[BiasResult]):
    """A table for each number of training rows that makes a class a seen one."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        self._tables: dict[int, list[_ClientRow]] = {least: [] for least in SEEN_AT_LEAST}

    def see(self, client: ClientView) -> None:
        before, after = (client.model(side).probabilities(client.balanced) for side in SIDES)
        counts, y = client.train_counts, client.balanced.y
        for least, table in self._tables.items():
            seen = counts >= least
            n_unseen = int((~seen)[y].sum())
            table.append(
                _ClientRow(
                    client=client.cid,
                    seen=tuple(seen.long().tolist()),
                    train_counts=tuple(counts.tolist()),
                    blind=float(seen.double().mean()),
                    n_unseen=n_unseen,
                    n_seen=len(y) - n_unseen,
                    before=_bias(before, y, counts, least),
                    after=_bias(after, y, counts, least),
                )
            )

    def outcomes(self) -> Iterator[Outcome[BiasResult]]:
        data = self.snapshots.data
        for least, rows in self._tables.items():
            before, after = [row.before for row in rows], [row.after for row in rows]
            result = BiasResult(
                clients=tuple(row.client for row in rows),
                seen=tuple(row.seen for row in rows),
                train_counts=tuple(row.train_counts for row in rows),
                blind=tuple(row.blind for row in rows),
                n_unseen=tuple(row.n_unseen for row in rows),
                n_seen=tuple(row.n_seen for row in rows),
                before=_columns(before),
                after=_columns(after),
                mean=Sides(
                    means_of([bias.numbers for bias in before]),
                    means_of([bias.numbers for bias in after]),
                ),
                classes=data.classes,
                class_names=tuple(data.source.class_names),
            )
            yield Outcome("both", None, "bal", result, {"seen_at_least": least})


def _columns(clients: list[_Bias]) -> BiasColumns:
    return BiasColumns(
        **by_field([bias.numbers for bias in clients]),
        **by_field([bias.shares for bias in clients]),
    )


def _bias(p: Tensor, y: Tensor, counts: Tensor, least: int) -> _Bias:
    bias, prior = classifier_bias(p, y, counts, least), prior_agreement(p, counts)
    numbers = BiasNumbers(
        seen_mass=bias.seen_mass if bias.n_unseen else math.nan,
        seen_mass_soft=bias.seen_mass_soft,
        seen_mass_noise=bias.seen_mass_noise,
        entropy=bias.entropy,
        distance_to_labels=bias.distance_to_labels,
        distance_noise=bias.distance_noise,
        unseen_recall=bias.unseen_recall,
        seen_recall=bias.seen_recall,
        seen_recall_restricted=bias.seen_recall_restricted,
        prior_correlation=prior.correlation,
        prior_divergence=prior.divergence,
        distance_to_uniform=prior.distance_to_uniform,
        uniform_noise=prior.distance_noise,
    )
    shares = _Shares(
        predicted=tuple(bias.predicted.tolist()),
        mean_softmax=tuple(bias.mean_softmax.tolist()),
        predicted_all=tuple(prior.predicted.tolist()),
    )
    return _Bias(numbers, shares)


# ------------------------------------------------------------------ terminal


def _rows(bias: Reading[BiasResult]) -> list[Row]:
    result, least = bias.result, bias.settings["seen_at_least"]
    label = "unseen called seen" if least == 1 else f"the same, seen from {least} rows"
    numbers = {side: result.mean[side].seen_mass for side in SIDES}
    blind = mean(b for b, n in zip(result.blind, result.n_unseen, strict=True) if n)
    return [Row(label, bias.layer, bias.data, numbers, f"uniform guess: {short(blind)}")]


# ------------------------------------------------------------------ report

HEAD = [
    *("client", "classes seen %", "seen mass before", "after"),
    *("unseen recall before", "after", "seen recall before", "after"),
]


def _chart(name: str, readings: list[Reading[BiasResult]], drawings: Drawings) -> Html:
    bias = min(newest(readings), key=lambda reading: int(reading.settings["seen_at_least"]))
    result = bias.result
    clients = list(map(str, result.clients))
    frames = [
        {
            "name": f"{side} local training",
            "rows": clients,
            "cols": list(result.class_names) or list(map(str, range(result.classes))),
            "values": [[rounded(v, 3) for v in row] for row in result.side(side).predicted],
            "marked": result.seen,
        }
        for side in SIDES
    ]
    before, after = result.before, result.after
    rows = [
        [
            client,
            100 * result.blind[i],
            *(before.seen_mass[i], after.seen_mass[i]),
            *(before.unseen_recall[i], after.unseen_recall[i]),
            *(before.seen_recall[i], after.seen_recall[i]),
        ]
        for i, client in enumerate(clients)
    ]
    return drawings.figure(
        name,
        f"{DIAGNOSTIC.title}, round {bias.round}",
        {
            "kind": "heat",
            "xlabel": "predicted class",
            "ylabel": "client",
            "max": 1.0,
            "digits": 2,
            "frames": frames,
            "choose": "model",
        },
        plain_table(f"{name}-table", "What rows of unseen classes are taken for", HEAD, rows),
        "Share of rows of classes a client has never seen that it takes for each class; framed: the"
        " classes it has seen.",
    )


DIAGNOSTIC = Diagnostic(
    name="classifier_bias",
    title="Classifier bias",
    order=70,
    measure=BiasMeasure,
    result=BiasResult,
    rows=_rows,
    chart=_chart,
)
