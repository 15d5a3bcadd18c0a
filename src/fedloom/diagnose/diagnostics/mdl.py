"""MDL: how many bits the labels take for a receiver who has the features (DBE).

On the balanced rows (DBE's "over all class labels"), on each client's own, and on all clients' own
rows together, each through its own model. In the last a probe can read from the features whose they
are, and so which labels to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedloom.analysis.code_length import CodeLength, in_bits
from fedloom.analysis.mdl import PROBES, mdl_online, mdl_reprieve
from fedloom.analysis.tsne import pick_rows
from fedloom.diagnose.charts import bars, count_range, newest
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.diagnose.measure import Measure, Options, Outcome, Skipped
from fedloom.diagnose.per_client import (
    SIDES,
    Column,
    Counts,
    Side,
    Sides,
    columns_of,
    mean,
    means_of,
)
from fedloom.diagnose.rows import Row, short
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.errors import UnknownName
from fedloom.record import Number

T = TypeVar("T")

# ------------------------------------------------------------------ result


@dataclass(frozen=True)
class CodeNumbers(Generic[T]):
    """The code for one client's labels."""

    bits: T
    nats: T
    per_sample: T
    """Nats per label."""
    ratio: T
    """Part of the uniform code."""


@dataclass(frozen=True)
class Curve:
    """Loss of the probe per label over training sizes, mean over clients."""

    sizes: Counts
    before: Column
    after: Column


@dataclass(frozen=True)
class MdlResult:
    """Codes of one layer and data set."""

    clients: Counts
    n: Counts
    """Labels."""
    uniform_bits: Column
    """Of a receiver who takes all classes for equally likely."""
    prior_bits: Column
    """Of a receiver who knows how often each class occurs."""
    change_percent: Column
    before: CodeNumbers[Column]
    after: CodeNumbers[Column]
    mean: Sides[CodeNumbers[Number]]
    mean_change_percent: Number
    curve: Curve | None
    """None where clients have unequally many labels."""

    def bits(self, side: Side) -> Column:
        """Of each client."""
        return (self.before if side == "before" else self.after).bits

    def per_label(self, bits: Column) -> Column:
        """Code lengths of the clients divided by their numbers of labels."""
        return tuple(b / n for b, n in zip(bits, self.n, strict=True))


# ------------------------------------------------------------------ measure

ESTIMATORS: dict[str, Callable[..., CodeLength]] = {"online": mdl_online, "reprieve": mdl_reprieve}
FEWEST_ROWS = 20
"""A client with fewer rows of its own has no code worth a number."""
EVERYBODY = -1
"""Stands for a client's id where the rows of all are coded together."""

Key = tuple[str, str, Side]
"""Data set, layer, and whether before or after local training."""


class MdlMeasure(Measure[MdlResult]):
    """Codes a client's rows when it sees the client, and those of all together at the end."""

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        if options.estimator not in ESTIMATORS:
            raise UnknownName("estimator", options.estimator, ESTIMATORS)
        if options.probe not in PROBES:
            raise UnknownName("probe", options.probe, PROBES)
        self._classes = snapshots.data.classes
        self._codes: dict[tuple[str, str], dict[int, dict[Side, CodeLength]]] = {}
        self._received: dict[tuple[str, str], _Coded] = {}
        self._pool: dict[str, dict[Side, list[Tensor]]] = {}
        self._labels: list[Tensor] = []

    def see(self, client: ClientView) -> None:
        samples = [client.balanced]
        if client.test is not None:
            self._add_to_pool(client)
            if len(client.test) >= FEWEST_ROWS:
                samples.append(client.test)
        features: dict[Key, Tensor] = {}
        labels: dict[Key, Tensor] = {}
        for sample in samples:
            for side in SIDES:
                for layer, z in client.model(side).features(sample).items():
                    features[sample.name, layer, side] = z
                    labels[sample.name, layer, side] = sample.y
        self._code(client.cid, features, labels)

    def outcomes(self) -> Iterator[Outcome[MdlResult]]:
        self._code_the_pool()
        settings = {
            "estimator": self.options.estimator,
            "probe": self.options.probe,
            "classes": self._classes,
            "shuffle_seed": 0,
        }
        for wanted in ("bal", "local-test", "pooled"):
            for (data, layer), clients in self._codes.items():
                if data == wanted:
                    yield Outcome("both", layer, data, _result(clients), settings)
        if len(self._labels) > 1 and not self._pool:
            why = "clients have different networks, whose features no one probe can read"
            yield Outcome("both", None, "pooled", Skipped(why), settings)

    def _add_to_pool(self, client: ClientView) -> None:
        """Some of the client's own rows, an equal share for everybody."""
        assert client.test is not None
        most = max(1, self.snapshots.samples.rows // len(self.snapshots.ids))
        rows = pick_rows(client.test.y, most)
        self._labels.append(client.test.y[rows])
        for side in SIDES:
            for layer, z in client.model(side).features(client.test).items():
                self._pool.setdefault(layer, {}).setdefault(side, []).append(z[rows])

    def _code_the_pool(self) -> None:
        """Of the layers that all clients have, in one width."""
        self._pool = {
            layer: features
            for layer, features in self._pool.items()
            if len(features["before"]) == len(self._labels)
            and len({z.shape[1] for z in features["before"]}) == 1
        }
        if len(self._labels) < 2:
            return
        features: dict[Key, Tensor] = {
            ("pooled", layer, side): torch.cat(of_clients[side])
            for layer, of_clients in self._pool.items()
            for side in SIDES
        }
        self._code(EVERYBODY, features, dict.fromkeys(features, torch.cat(self._labels)))

    def _code(self, cid: int, features: dict[Key, Tensor], labels: dict[Key, Tensor]) -> None:
        """Code many matrices; one that equals what was received last, as of a model or an extractor
        that all share or that nobody trains, takes its code."""
        measure, probe = ESTIMATORS[self.options.estimator], self.options.probe
        for key, z in features.items():
            data, layer, side = key
            coded = self._received.get((data, layer))
            if coded is None or not coded.is_of(z, labels[key]):
                code = measure(z, labels[key], self._classes, probe=probe)
                coded = _Coded(z, labels[key], code)
                if side == "before":
                    self._received[data, layer] = coded
            self._codes.setdefault((data, layer), {}).setdefault(cid, {})[side] = coded.code


@dataclass(frozen=True, eq=False)
class _Coded:
    """What was coded last of a layer's rows as received."""

    features: Tensor
    labels: Tensor
    code: CodeLength

    def is_of(self, z: Tensor, y: Tensor) -> bool:
        return torch.equal(self.labels, y) and torch.equal(self.features, z)


def _result(clients: dict[int, dict[Side, CodeLength]]) -> MdlResult:
    codes = list(clients.values())
    before, after = ([code[side] for code in codes] for side in SIDES)
    numbers = Sides([_numbers(code) for code in before], [_numbers(code) for code in after])
    change = tuple(
        100 * (new.nats - old.nats) / old.nats for old, new in zip(before, after, strict=True)
    )
    return MdlResult(
        clients=tuple(clients),
        n=tuple(code.n for code in before),
        uniform_bits=tuple(in_bits(code.uniform) for code in before),
        prior_bits=tuple(in_bits(code.prior) for code in before),
        change_percent=change,
        before=columns_of(numbers.before),
        after=columns_of(numbers.after),
        mean=Sides(means_of(numbers.before), means_of(numbers.after)),
        mean_change_percent=mean(change),
        curve=_curve(before, after),
    )


def _numbers(code: CodeLength) -> CodeNumbers[float]:
    return CodeNumbers(code.bits, code.nats, code.per_sample, code.ratio)


def _curve(before: list[CodeLength], after: list[CodeLength]) -> Curve | None:
    if len({code.sizes for code in before}) > 1:
        return None
    return Curve(before[0].sizes, _mean_curve(before), _mean_curve(after))


def _mean_curve(codes: list[CodeLength]) -> Column:
    return tuple(mean(losses) for losses in zip(*(code.curve for code in codes), strict=True))


# ------------------------------------------------------------------ terminal

UNEQUAL = "local-test"
"""Where clients code unequally many labels, so that only bits per label have a mean."""


def _rows(mdl: Reading[MdlResult]) -> list[Row]:
    result = mdl.result
    if mdl.data == UNEQUAL:
        label = "MDL, bits per label"
        numbers = {side: mean(result.per_label(result.bits(side))) for side in SIDES}
        reference = f"labels alone: {short(mean(result.per_label(result.prior_bits)))}"
    else:
        label = "MDL, bits"
        numbers = {side: result.mean[side].bits for side in SIDES}
        reference = f"uniform code: {short(mean(result.uniform_bits))}"
    return [Row(label, mdl.layer, mdl.data, numbers, reference)]


# ------------------------------------------------------------------ report

DATA = {"bal": "balanced rows", "local-test": "own test rows", "pooled": "rows of all clients"}
HEAD = [
    *("layer", "labels", "estimator", "probe", "bits before", "bits after"),
    *("bits per label before", "after", "labels alone, per label", "uniform code, per label"),
    *("of uniform code before", "after", "change %"),
]
NOTES = {
    "bal": "Uniform code: all classes taken for equally likely, no features.",
    "local-test": "Labels alone: a receiver who knows how often a client has each class, and no"
    " features; mean over clients.",
    "pooled": "Uniform code: all classes taken for equally likely, no features. The probe may read"
    " from the features which client a row is from, and so which labels to expect.",
}


def _chart(name: str, readings: list[Reading[MdlResult]], drawings: Drawings) -> Html:
    """A chart for each data set."""
    last = newest(readings)
    figures = [
        _figure(f"{name}-{data}", data, [mdl for mdl in last if mdl.data == data], drawings)
        for data in dict.fromkeys(mdl.data for mdl in last)
    ]
    return tag("div", figures, class_="flat")


def _figure(name: str, data: str, readings: list[Reading[MdlResult]], drawings: Drawings) -> Html:
    """In bits where all code equally many labels; on clients' own rows in bits per label."""
    results = [mdl.result for mdl in readings]
    if data == UNEQUAL:
        unit, reference = "bits per label", "labels alone"
        columns = {side: [r.per_label(r.bits(side)) for r in results] for side in SIDES}
        without_features = mean(v for r in results for v in r.per_label(r.prior_bits))
    else:
        unit, reference = "bits", "uniform code"
        columns = {side: [r.bits(side) for r in results] for side in SIDES}
        without_features = mean(v for r in results for v in r.uniform_bits)
    whose = "One code over the rows of all clients" if data == "pooled" else "Mean over clients"
    whiskers = "" if data == "pooled" else " Whiskers: lowest and highest client."
    return drawings.figure(
        name,
        f"{DIAGNOSTIC.title}, {DATA[data]}, round {readings[0].round}",
        {
            "kind": "bars",
            "ylabel": unit,
            "groups": [mdl.layer for mdl in readings],
            "series": [bars(side, map(mean, columns[side]), columns[side]) for side in SIDES],
            "references": [{"name": reference, "value": rounded(without_features)}],
        },
        plain_table(f"{name}-table", whose, HEAD, [_numbers_of(mdl) for mdl in readings]),
        f"Lower is better: bits to tell the labels from the features.{whiskers} {NOTES[data]}",
    )


def _numbers_of(mdl: Reading[MdlResult]) -> list[Any]:
    result = mdl.result
    return [
        mdl.layer,
        count_range(result.n),
        mdl.settings["estimator"],
        mdl.settings["probe"],
        *(None if mdl.data == UNEQUAL else result.mean[side].bits for side in SIDES),
        *(mean(result.per_label(result.bits(side))) for side in SIDES),
        mean(result.per_label(result.prior_bits)),
        mean(result.per_label(result.uniform_bits)),
        *(result.mean[side].ratio for side in SIDES),
        result.mean_change_percent,
    ]


DIAGNOSTIC = Diagnostic(
    name="mdl",
    title="Description length",
    order=10,
    measure=MdlMeasure,
    result=MdlResult,
    rows=_rows,
    chart=_chart,
)
