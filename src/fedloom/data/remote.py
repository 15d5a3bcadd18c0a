"""A federation whose data stays at its sites: how many sites there are, and what an input is."""

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

    >>> data = RemoteData(3, (1, 8, 8), ("cat", "dog"), "image")
    >>> len(data), data.classes, data.client_names
    (3, 2, ['0', '1', '2'])
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
    def client_names(self) -> list[str]:
        """The clients' numbers: who sits where is known to the registry of sites alone."""
        return self.partition.client_names

    @property
    def shared_tests(self) -> Mapping[str, Split]:
        """None: a server without data tests nothing."""
        return {}

    @property
    def partition(self) -> Partition:
        """Clients without rows; its `source` is a digest of the kind of data, by which a resumed
        run knows that it is still the same."""
        kind_of_data = sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return Partition((ClientRows(empty()),) * self.places, source=kind_of_data)

    def client(self, cid: int) -> ClientData:
        """Refused: rows stay at their site."""
        raise BadInput(f"the data of client {cid} is at its site; use the flower engine")

    def size(self, cid: int) -> int:
        """Unknown here."""
        return 0
