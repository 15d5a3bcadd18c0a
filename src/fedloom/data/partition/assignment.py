"""A finished partition: which rows are whose, in a file that notices when it was altered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from fedloom.data.partition.draw import Ints, class_totals, empty
from fedloom.errors import BadInput
from fedloom.files import parse_json, read_regular, write_atomic

FORMAT = "fedloom partition 1"
SplitName = Literal["train", "val", "test"]
SOME = 100
"""Clients whose rows are written or hashed at a time: lists of more of them only busy the garbage
collector."""


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Rows of the source that one client holds; an empty array where it has no such split."""

    train: Ints
    val: Ints = field(default_factory=empty)
    test: Ints = field(default_factory=empty)

    def __iter__(self) -> Iterator[Ints]:
        return iter((self.train, self.val, self.test))

    @property
    def all(self) -> Ints:
        """Train, validation and test rows, in this order."""
        return np.concatenate(list(self))


class PackedRows(Sequence[ClientRows]):
    """The rows of all clients in one array: train, validation and test of one after the other.

    Separate arrays for each split of each of 100,000 clients would take four times the memory, and
    a second to send to a worker. What concerns all clients is asked of the one array, as it takes
    a million clients many seconds to become objects.

    >>> packed = PackedRows.of([ClientRows(np.array([4, 2])), ClientRows(np.array([7]))])
    >>> len(packed), packed[1].train, packed[-2].all, packed.split("train")
    (2, array([7]), array([4, 2]), array([4, 2, 7]))
    """

    def __init__(self, rows: Ints, sizes: Ints) -> None:
        self.rows = rows
        self.sizes = sizes
        """Rows of each client's train, validation and test. [N, 3]"""
        self._ends = np.concatenate([[0], np.cumsum(sizes)])

    @classmethod
    def of(cls, clients: Iterable[ClientRows]) -> PackedRows:
        """The same of clients one by one."""
        parts = [rows for client in clients for rows in client]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts)).reshape(-1, 3)
        return cls(np.concatenate([empty(), *parts]), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> ClientRows: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[ClientRows]: ...
    def __getitem__(self, at: int | slice) -> ClientRows | Sequence[ClientRows]:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        first = 3 * range(len(self))[at]
        a, b, c, d = self._ends[first : first + 4].tolist()
        return ClientRows(self.rows[a:b], self.rows[b:c], self.rows[c:d])

    def split(self, name: SplitName) -> Ints:
        """The rows of one split, in the order of clients."""
        return self.rows[np.repeat(np.tile(_of_split(name), len(self)), self.sizes.ravel())]

    def has(self, name: SplitName) -> bool:
        """Whether any client has rows of this split."""
        return bool(self.sizes[:, _of_split(name)].any())

    def counts(self, labels: Ints, classes: int, split: SplitName | None = None) -> Ints:
        """Samples of each client and class, of one split or of all. [N, K]"""
        rows = self.rows if split is None else self.split(split)
        sizes = self.sizes.sum(axis=1) if split is None else self.sizes @ _of_split(split)
        cells = np.repeat(np.arange(len(self)) * classes, sizes) + labels[rows]
        return class_totals(cells, len(self) * classes).reshape(-1, classes)

    def plain(self) -> Iterator[list[list[list[int]]]]:
        """Some clients at a time, as lists of numbers."""
        for ends in self._some_ends():
            numbers = self.rows[ends[0] : ends[-1]].tolist()
            parts = [numbers[a:b] for a, b in pairwise((ends - ends[0]).tolist())]
            yield [parts[i : i + 3] for i in range(0, len(parts), 3)]

    def framed(self) -> Iterator[Ints]:
        """Some clients at a time, every split's rows after how many bytes they are."""
        for ends in self._some_ends():
            rows = self.rows[ends[0] : ends[-1]]
            yield np.insert(rows, ends[:-1] - ends[0], 8 * np.diff(ends))

    def _some_ends(self) -> Iterator[Ints]:
        """Where the splits of some clients begin and end: of all at a time, what is made of them
        would be as large as the rows."""
        for first in range(0, len(self), SOME):
            yield self._ends[3 * first : 3 * (first + SOME) + 1]


def _of_split(name: SplitName) -> NDArray[np.bool_]:
    """Which of train, validation and test it is."""
    return np.array([name == other for other in get_args(SplitName)])


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows of every client, and of test sets that belong to no client.

    `label_maps[i]` is what client i calls each class, where clients disagree (concept shift).
    `source` is the fingerprint of the data the rows are of; `recipe` is the expressions and the
    seed it was made with. `names[i]` is what client i is called; without names it is its number.
    """

    clients: Sequence[ClientRows]
    shared: Mapping[str, Ints] = field(default_factory=dict)
    label_maps: Ints | None = None  # [N, K]
    source: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", self.packed)
        if self.names and len(self.names) < len(self.clients):
            raise BadInput(f"{len(self.names)} names are too few for {len(self.clients)} clients")

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def packed(self) -> PackedRows:
        """`clients`, for questions about all of them at once."""
        clients = self.clients
        return clients if isinstance(clients, PackedRows) else PackedRows.of(clients)

    @property
    def client_names(self) -> list[str]:
        """What each client is called: its site's or user's name, or its number."""
        return [self.names[i] if self.names else str(i) for i in range(len(self))]

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 over all rows and label maps, not the names: two partitions have the same one
        exactly where their clients hold the same."""
        digest = hashlib.sha256()
        for rows in self.packed.framed():
            digest.update(rows.astype("<i8").tobytes())
        maps = [] if self.label_maps is None else [self.label_maps.ravel()]
        shared = [part for name, rows in sorted(self.shared.items()) for part in (name, rows)]
        for part in [*shared, *maps]:
            data = part.encode() if isinstance(part, str) else part.astype("<i8").tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def counts(self, labels: Ints, classes: int, split: SplitName | None = None) -> Ints:
        """Samples of each client and class, of one split or of all. [N, K]"""
        table = self.packed.counts(labels, classes, split)
        if self.label_maps is None:
            return table
        renamed = np.zeros_like(table)
        np.put_along_axis(renamed, self.label_maps, table, axis=1)
        return renamed

    def to_json(self) -> str:
        """The partition as text; `from_json` gives it back."""
        maps = self.label_maps
        head = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "source": self.source,
            "recipe": dict(self.recipe),
        }
        tail = {
            "shared": {name: rows.tolist() for name, rows in self.shared.items()},
            "label_maps": None if maps is None else maps.tolist(),
            **({"client_names": list(self.names)} if self.names else {}),
        }
        # Some at a time: as Python numbers, rows take many times the memory of the array.
        clients = ", ".join(json.dumps(some)[1:-1] for some in self.packed.plain())
        return f'{json.dumps(head)[:-1]}, "clients": [{clients}], {json.dumps(tail)[1:]}'

    @classmethod
    def from_json(cls, text: str, where: str = "this text") -> Partition:
        """The partition written by `to_json`; an error if a row was altered since."""
        try:
            saved = parse_json(text)
            if saved["format"] != FORMAT:
                raise ValueError(saved["format"])
            if type(saved["source"]) is not str or type(saved["recipe"]) is not dict:
                raise ValueError("it does not say of what data and how it was made")
            maps = saved["label_maps"]
            partition = cls(
                clients=tuple(ClientRows(*map(_rows, client)) for client in saved["clients"]),
                shared={name: _rows(rows) for name, rows in saved["shared"].items()},
                label_maps=None if maps is None else np.array(maps, dtype=np.int64),
                source=saved["source"],
                recipe=saved["recipe"],
                names=_names(saved.get("client_names", []), len(saved["clients"])),
            )
            expected = saved["fingerprint"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise BadInput(f"{where} is not a partition saved by fedloom; make it again") from None
        if partition.fingerprint != expected:
            raise BadInput(
                f"{where} was altered after it was saved: its rows have fingerprint "
                f"{partition.fingerprint[:12]}, it says {str(expected)[:12]}; make it again"
            )
        return partition

    def save(self, path: str | Path) -> None:
        """Write the partition to a file."""
        write_atomic(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a saved partition and check that it was not altered."""
        try:
            text = read_regular(Path(path)).decode("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise BadInput(f"cannot read the partition file {path} ({e})") from None
        return cls.from_json(text, where=f"partition file {path}")


def _names(values: list[str], clients: int) -> tuple[str, ...]:
    if not all(type(v) is str for v in values) or (values and len(values) != clients):
        raise ValueError("names are texts, one for each client")
    return tuple(values)


def _rows(values: list[int]) -> Ints:
    if not all(type(v) is int and v >= 0 for v in values):
        raise ValueError("rows are whole numbers")
    return np.array(values, dtype=np.int64)
