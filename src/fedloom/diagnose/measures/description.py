"""MDL of every layer, before and after local training, client by client and pooled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.analysis.code_length import CodeLength, in_bits
from fedloom.analysis.mdl import PROBES, mdl_online, mdl_reprieve, mdl_table
from fedloom.analysis.tsne import pick_rows
from fedloom.diagnose.measures.base import Measure, Options, Outcome, PerClient, mean
from fedloom.diagnose.snapshots import ClientView, Snapshots
from fedloom.errors import UnknownName

ESTIMATORS: dict[str, Callable[..., CodeLength]] = {"online": mdl_online, "reprieve": mdl_reprieve}
FEWEST_ROWS = 20
"""A client with fewer rows of its own has no code worth a number."""
WORKERS = 2
EVERYBODY = -1
"""Stands for a client's id where the rows of all are coded together."""
WHEN = ("before", "after")

Key = tuple[str, str, str]
"""Data set, layer, snapshot."""


class DescriptionLength(Measure):
    """How many bits the labels take for a receiver who has the features (DBE).

    On the balanced rows (DBE's "over all class labels"), on each client's own, and on all clients'
    own rows together, each through its own model; there a probe can read from the features whose
    they are, and so which labels to expect.
    """

    name: ClassVar[str] = "mdl"

    def __init__(self, snapshots: Snapshots, options: Options) -> None:
        super().__init__(snapshots, options)
        if options.estimator not in ESTIMATORS:
            raise UnknownName("estimator", options.estimator, ESTIMATORS)
        if options.probe not in PROBES:
            raise UnknownName("probe", options.probe, PROBES)
        self._classes = snapshots.data.classes
        self._codes: dict[tuple[str, str, int], dict[str, CodeLength]] = {}
        self._known: dict[bytes, CodeLength] = {}
        self._pool: dict[str, dict[str, list[Tensor]]] = {}
        self._labels: list[Tensor] = []

    def see(self, client: ClientView) -> None:
        samples = [client.balanced]
        if client.test is not None:
            self._keep(client)
            if len(client.test) >= FEWEST_ROWS:
                samples.append(client.test)
        features: dict[Key, Tensor] = {}
        labels: dict[Key, Tensor] = {}
        for sample in samples:
            for when in WHEN:
                for layer, z in getattr(client, when).features(sample).items():
                    features[sample.name, layer, when] = z
                    labels[sample.name, layer, when] = sample.y
        for (data, layer, when), code in self._measured(features, labels).items():
            self._codes.setdefault((data, layer, client.cid), {})[when] = code

    def outcomes(self) -> Iterator[Outcome]:
        self._code_the_pool()
        settings = {
            "estimator": self.options.estimator,
            "probe": self.options.probe,
            "classes": self._classes,
            "shuffle_seed": 0,
        }
        found: dict[tuple[str, str], dict[int, dict[str, CodeLength]]] = {}
        for (data, layer, cid), codes in self._codes.items():
            found.setdefault((data, layer), {})[cid] = codes
        for data in ("bal", "local-test", "pooled"):
            for (where, layer), clients in found.items():
                if where == data:
                    yield Outcome("both", layer, data, _result(clients), settings)
        if len(self._labels) > 1 and not self._pool:
            why = "clients have different networks, whose features no one probe can read"
            yield Outcome("both", None, "pooled", {"skipped": why}, settings)

    def _keep(self, client: ClientView) -> None:
        """Some of the client's own rows for the pool, an equal share for everybody."""
        assert client.test is not None
        most = max(1, self.snapshots.samples.rows // len(self.snapshots.ids))
        rows = pick_rows(client.test.y, most)
        self._labels.append(client.test.y[rows])
        for when in WHEN:
            for layer, z in getattr(client, when).features(client.test).items():
                self._pool.setdefault(layer, {}).setdefault(when, []).append(z[rows])

    def _code_the_pool(self) -> None:
        alike = {
            layer: kept
            for layer, kept in self._pool.items()
            if len(kept["before"]) == len(self._labels)
            and len({z.shape[1] for z in kept["before"]}) == 1
        }
        self._pool = alike
        if len(self._labels) < 2:
            return
        y = torch.cat(self._labels)
        features = {
            ("pooled", layer, when): torch.cat(kept[when])
            for layer, kept in alike.items()
            for when in WHEN
        }
        for (data, layer, when), code in self._measured(
            features, dict.fromkeys(features, y)
        ).items():
            self._codes.setdefault((data, layer, EVERYBODY), {})[when] = code

    def _measured(
        self, features: dict[Key, Tensor], labels: dict[Key, Tensor]
    ) -> dict[Key, CodeLength]:
        """Codes of many matrices; equal ones, as of an extractor all share, are coded once."""
        marks = {key: _mark(z, labels[key]) for key, z in features.items()}
        new = {mark: key for key, mark in marks.items() if mark not in self._known}
        self._known |= mdl_table(
            {mark: features[key] for mark, key in new.items()},
            {mark: labels[key] for mark, key in new.items()},
            self._classes,
            measure=ESTIMATORS[self.options.estimator],
            workers=WORKERS,
            probe=self.options.probe,
        )
        return {key: self._known[mark] for key, mark in marks.items()}


def _mark(z: Tensor, y: Tensor) -> bytes:
    found = sha256(repr(tuple(z.shape)).encode())
    found.update(z.numpy().data)
    found.update(y.numpy().data)
    return found.digest()


def _result(clients: dict[int, dict[str, CodeLength]]) -> dict[str, Any]:
    table = PerClient()
    for cid, codes in clients.items():
        before, after = codes["before"], codes["after"]
        table.add(
            cid,
            _numbers(before),
            _numbers(after),
            n=before.n,
            uniform_bits=in_bits(before.uniform),
            prior_bits=in_bits(before.prior),
            change_percent=100 * (after.nats - before.nats) / before.nats,
        )
    result = table.result()
    result["mean_change_percent"] = mean(result["change_percent"])
    sizes = {codes["before"].sizes for codes in clients.values()}
    result["curve"] = None if len(sizes) > 1 else _curve(sizes.pop(), list(clients.values()))
    return result


def _numbers(code: CodeLength) -> dict[str, float]:
    return {
        "bits": code.bits,
        "nats": code.nats,
        "per_sample": code.per_sample,
        "ratio": code.ratio,
    }


def _curve(sizes: tuple[int, ...], clients: list[dict[str, CodeLength]]) -> dict[str, Any]:
    means = {
        when: [mean(at) for at in zip(*(codes[when].curve for codes in clients), strict=True)]
        for when in WHEN
    }
    return {"sizes": list(sizes), **means}
