"""A federation whose data is elsewhere: so many places, and what an input looks like at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256

from fedloom.core.data import ClientData, Split
from fedloom.data.partition import Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.data.partition.draw import empty
from fedloom.data.source import Kind
from fedloom.errors import BadInput


@dataclass(frozen=True)
class RemoteData:
    """What a server knows of its sites.

    >>> seats = RemoteData(3, (1, 8, 8), ("cat", "dog"), "image")
    >>> len(seats), seats.classes
    (3, 2)
    """

    places: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    kind: Kind
    vocabulary: int = 0

    def __len__(self) -> int:
        return self.places

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def shared_tests(self) -> Mapping[str, Split]:
        """None: a server without data tests nothing."""
        return {}

    @property
    def partition(self) -> Partition:
        """Rows of nobody; its source tells whether a run goes on with the same kind of data."""
        about = sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return Partition((ClientRows(empty()),) * self.places, source=about)

    def client(self, cid: int) -> ClientData:
        """Refused: rows stay at their site."""
        raise BadInput(f"the data of client {cid} is at its site; use the flower engine")

    def size(self, cid: int) -> int:
        """Unknown here."""
        return 0
