"""Rows that occur more than once: at a client, at several, in training and in test rows.

Rows are compared by a digest of 64 bits of their input, so that memory holds eight bytes a row
however large the rows are; among ten million different rows the chance of one wrong match is less
than one in 100,000.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedloom.data import FederatedData
from fedloom.data.partition.draw import Ints

_CHUNK = 2048  # rows read at a time from a memory map
_MOST_HOLDERS = 50  # of one input, whose pairs are counted
_NOBODY = -1  # holds the test sets that belong to no client
_TRAIN, _VAL, _TEST = range(3)


@dataclass(frozen=True)
class Twice:
    """A row and an equal one, by their numbers in the data."""

    row: int
    other: int
    client: str
    other_client: str


@dataclass(frozen=True)
class Duplicates:
    """Equal inputs, whatever their targets are."""

    within: int
    """Rows that repeat another row of the same client."""
    within_by_client: dict[str, int]
    across: int
    """Different inputs that several clients hold."""
    pairs: tuple[tuple[str, str, int], ...]
    """Two clients and how many inputs both hold, most first."""
    leaks_within: int
    """Test rows whose client trains or validates on the same input."""
    leaks_across: int
    """Test rows on whose input another client trains, and their own does not."""
    contradictions: int
    """Inputs that occur with unlike targets."""
    examples: dict[str, Twice]
    """An example of each that occurs, by the name of the field."""


def row_digests(x: np.ndarray) -> np.ndarray:
    """One number of 64 bits for every row."""
    digests = np.empty(len(x), np.uint64)
    for start in range(0, len(x), _CHUNK):
        block = np.ascontiguousarray(x[start : start + _CHUNK])
        for i, row in enumerate(block):
            short = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
            digests[start + i] = int.from_bytes(short, "little")
    return digests


@dataclass(frozen=True)
class _Held:
    """Which rows are whose, one entry for every row of every client."""

    rows: Ints
    clients: Ints
    splits: Ints

    @classmethod
    def of(cls, data: FederatedData) -> _Held:
        parts = [
            (rows, cid, split)
            for cid, client in enumerate(data.partition.clients)
            for split, rows in enumerate(client)
        ]
        parts += [(rows, _NOBODY, _TEST) for rows in data.partition.shared.values()]
        sizes = [len(rows) for rows, _, _ in parts]
        return cls(
            np.concatenate([rows for rows, _, _ in parts]),
            np.repeat([cid for _, cid, _ in parts], sizes),
            np.repeat([split for _, _, split in parts], sizes),
        )

    def only(self, at: np.ndarray) -> _Held:
        return _Held(self.rows[at], self.clients[at], self.splits[at])


def duplicates(data: FederatedData) -> Duplicates:
    """All inputs that occur more than once among the rows that clients hold."""
    held = _Held.of(data)
    digests = row_digests(data.source.x)[held.rows]
    _, which, counts = np.unique(digests, return_inverse=True, return_counts=True)
    repeated = counts[which] > 1
    which, held = which[repeated], held.only(repeated)
    targets = row_digests(data.source.y)
    order = np.argsort(which, kind="stable")
    ends = np.flatnonzero(np.diff(which[order])) + 1
    tally = _Tally([*data.client_names, "the common test set"])
    for entries in np.split(order, ends) if len(order) else []:
        tally.add(held.only(entries), targets)
    return tally.result()


class _Tally:
    """Counts over the inputs that occur more than once."""

    def __init__(self, names: list[str]) -> None:
        self.names = names  # the last is nobody's
        self.within: Counter[str] = Counter()
        self.pairs: Counter[tuple[int, int]] = Counter()
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, Twice] = {}

    def add(self, held: _Held, targets: np.ndarray) -> None:
        """Entries that have one input in common."""
        clients = held.clients.tolist()
        holders = sorted(set(clients) - {_NOBODY})
        for cid in holders:
            own = np.flatnonzero(held.clients == cid)
            if len(own) > 1:
                self.within[self.names[cid]] += len(own) - 1
                self._example("within", held, int(own[1]), int(own[0]))
        if len(holders) > 1:
            self.counts["across"] += 1
            self.pairs.update(combinations(holders[:_MOST_HOLDERS], 2))
            second = int(np.flatnonzero(held.clients == holders[1])[0])
            self._example(
                "across", held, second, int(np.flatnonzero(held.clients == holders[0])[0])
            )
        self._add_leaks(held)
        if len(np.unique(targets[held.rows])) > 1:
            self.counts["contradictions"] += 1
            unlike = np.flatnonzero(targets[held.rows] != targets[held.rows[0]])[0]
            self._example("contradictions", held, int(unlike), 0)

    def _add_leaks(self, held: _Held) -> None:
        learned = np.flatnonzero(held.splits != _TEST)
        if not len(learned):
            return
        for test in np.flatnonzero(held.splits == _TEST):
            own = learned[held.clients[learned] == held.clients[test]]
            trained = learned[held.splits[learned] == _TRAIN]
            if len(own):
                self.counts["leaks_within"] += 1
                self._example("leaks_within", held, int(test), int(own[0]))
            elif len(trained):
                self.counts["leaks_across"] += 1
                self._example("leaks_across", held, int(test), int(trained[0]))

    def _example(self, name: str, held: _Held, at: int, other: int) -> None:
        self.examples.setdefault(
            name,
            Twice(
                int(held.rows[at]),
                int(held.rows[other]),
                self.names[int(held.clients[at])],
                self.names[int(held.clients[other])],
            ),
        )

    def result(self) -> Duplicates:
        """All counts."""
        pairs = [(self.names[a], self.names[b], n) for (a, b), n in self.pairs.most_common()]
        return Duplicates(
            within=self.within.total(),
            within_by_client=dict(self.within),
            across=self.counts["across"],
            pairs=tuple(pairs),
            leaks_within=self.counts["leaks_within"],
            leaks_across=self.counts["leaks_across"],
            contradictions=self.counts["contradictions"],
            examples=self.examples,
        )


def on_both_sides(data: FederatedData, groups: np.ndarray) -> list[str]:
    """The groups, a patient's or a camera's rows for instance, of which some rows are trained on
    and others tested on."""
    _, codes = np.unique(groups.astype(str), return_inverse=True)
    held = _Held.of(data)
    learned = set(codes[held.rows[held.splits == _TRAIN]].tolist())
    tested = set(codes[held.rows[held.splits == _TEST]].tolist())
    names = np.unique(groups.astype(str))
    return [str(names[code]) for code in sorted(learned & tested)]
