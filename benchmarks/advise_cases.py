"""Partitions whose best kind of method is known, because it follows from how they were made.

Each case says what its clients have in common, and with it which kinds of methods can be right. All
are small: a run takes about a second. They were written down before the first of them was run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

import fedloom as fl
from fedloom.advice.shortlist import (
    ALONE,
    CLUSTERS,
    FINE_TUNED,
    ONE_MODEL,
    PERSONAL_FEATURES,
    PERSONAL_HEAD,
)

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A partition, and the kinds of methods that are right for it."""

    name: str
    why: str
    kinds: frozenset[str]
    build: Callable[[np.random.Generator], fl.FederatedData]
    settings: dict[str, Any] = field(default_factory=dict)

    def data(self, draw: int) -> fl.FederatedData:
        """The same for the same number; what is made at random is drawn anew for another."""
        return self.build(np.random.default_rng(crc32(self.name.encode()) + draw))


CASES: dict[str, Case] = {}


def case(
    why: str, *kinds: str, **settings: Any
) -> Callable[[Callable[[np.random.Generator], fl.FederatedData]], Any]:
    def add(build: Callable[[np.random.Generator], fl.FederatedData]) -> Any:
        name = build.__name__
        CASES[name] = Case(name, why, frozenset(kinds), build, settings)
        return build

    return add


def sites(clients: list[Arrays]) -> fl.FederatedData:
    """Clients by name, A, B, ..."""
    named = {chr(ord("A") + i): pair for i, pair in enumerate(clients)}
    return fl.FederatedData.from_clients(named, normalize="channel")


def blobs(gen: np.random.Generator, means: np.ndarray, y: np.ndarray, noise: float) -> np.ndarray:
    """Inputs around the mean of their class."""
    return (means[y] + noise * gen.standard_normal((len(y), means.shape[1]))).astype(np.float32)


def argmax_of(x: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """Classes by a linear teacher."""
    return (x @ teacher).argmax(axis=1)


@case("digits dealt at random: all clients have one problem, and too few rows for it", ONE_MODEL)
def iid_digits(gen: np.random.Generator) -> fl.FederatedData:
    return fl.federate("digits", "iid", 20)


@case("six classes dealt at random, forty rows each: one problem, too few rows", ONE_MODEL)
def iid_classes(gen: np.random.Generator) -> fl.FederatedData:
    means = gen.standard_normal((6, 20))
    labels = [gen.integers(0, 6, 40) for _ in range(10)]
    return sites([(blobs(gen, means, y, 1.5), y) for y in labels])


@case("one function of the inputs for all, forty rows each", ONE_MODEL)
def iid_numbers(gen: np.random.Generator) -> fl.FederatedData:
    inner, outer = gen.standard_normal((10, 4)) / 3, gen.standard_normal(4)
    clients = []
    for _ in range(10):
        x = gen.standard_normal((40, 10)).astype(np.float32)
        clients.append((x, np.tanh(x @ inner) @ outer + 0.1 * gen.standard_normal(40)))
    return sites(clients)


@case("every client has a teacher of its own, drawn at random: nothing in common", ALONE)
def own_concepts(gen: np.random.Generator) -> fl.FederatedData:
    clients = []
    for _ in range(10):
        x = gen.standard_normal((120, 8)).astype(np.float32)
        clients.append((x, argmax_of(x, gen.standard_normal((8, 4)))))
    return sites(clients)


@case("one easy problem and 300 rows each: who trains alone has all it takes", ALONE)
def plenty(gen: np.random.Generator) -> fl.FederatedData:
    means = 2 * gen.standard_normal((4, 8))
    labels = [gen.integers(0, 4, 300) for _ in range(5)]
    return sites([(blobs(gen, means, y, 0.7), y) for y in labels])


@case(
    "what one half calls yes the other calls no: two models, or common features under own heads",
    CLUSTERS,
    PERSONAL_HEAD,
)
def opposite_halves(gen: np.random.Generator) -> fl.FederatedData:
    direction = gen.standard_normal(20)
    clients = []
    for i in range(12):
        x = gen.standard_normal((40, 20)).astype(np.float32)
        clients.append((x, (x @ direction > 0) ^ bool(i % 2)))
    return sites([(x, y.astype(np.int64)) for x, y in clients])


@case("three groups, each with one teacher that has nothing to do with the others'", CLUSTERS)
def three_groups(gen: np.random.Generator) -> fl.FederatedData:
    teachers = gen.standard_normal((3, 12, 4))
    clients = []
    for i in range(12):
        x = gen.standard_normal((48, 12)).astype(np.float32)
        clients.append((x, argmax_of(x, teachers[i % 3])))
    return sites(clients)


@case(
    "three of forty directions matter to all, and each client reads its classes from them in its"
    " own way: FedRep's model",
    PERSONAL_HEAD,
)
def common_features(gen: np.random.Generator) -> fl.FederatedData:
    body = np.linalg.qr(gen.standard_normal((40, 3)))[0]
    clients = []
    for _ in range(12):
        x = gen.standard_normal((60, 40)).astype(np.float32)
        clients.append((x, argmax_of(x, body @ gen.standard_normal((3, 3)))))
    return sites(clients)


@case(
    "digits, and every client has its own name for each: common features, own heads", PERSONAL_HEAD
)
def renamed_digits(gen: np.random.Generator) -> fl.FederatedData:
    return fl.federate("digits", "iid", 15, shift="permute_labels(groups=15)")


@case(
    "four of ten classes each, in thirty rows: few rows and label skew",
    PERSONAL_HEAD,
    FINE_TUNED,
)
def few_classes_each(gen: np.random.Generator) -> fl.FederatedData:
    means = gen.standard_normal((10, 30))
    clients = []
    for _ in range(15):
        own = gen.choice(10, 4, replace=False)
        y = own[gen.integers(0, 4, 30)]
        clients.append((blobs(gen, means, y, 1.5), y))
    return sites(clients)


@case(
    "one problem, seen through instruments with an offset of their own; the network has BatchNorm",
    PERSONAL_FEATURES,
    model="mlp(hidden=[32], norm=batch)",
)
def own_offsets(gen: np.random.Generator) -> fl.FederatedData:
    means = gen.standard_normal((4, 12))
    clients = []
    for _ in range(12):
        y = gen.integers(0, 4, 40)
        offset = 4 * gen.standard_normal(12).astype(np.float32)
        clients.append((blobs(gen, means, y, 1.0) + offset, y))
    return sites(clients)


@case(
    "one function of the inputs for all, plus a level of each client's own: common features, and"
    " an own bias at the end",
    PERSONAL_HEAD,
    PERSONAL_FEATURES,
    FINE_TUNED,
)
def own_levels(gen: np.random.Generator) -> fl.FederatedData:
    inner, outer = gen.standard_normal((10, 4)) / 3, gen.standard_normal(4)
    clients = []
    for _ in range(10):
        x = gen.standard_normal((40, 10)).astype(np.float32)
        level = 3 * gen.standard_normal()
        noise = 0.1 * gen.standard_normal(40)
        clients.append((x, np.tanh(x @ inner) @ outer + level + noise))
    return sites(clients)
