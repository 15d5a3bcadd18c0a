"""A federation whose data stays at its sites: how many sites there are, and what an input is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from fedloom.core.data import ClientData, Split
from fedloom.core.fields import Field, Fields
from fedloom.data.partition import Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.data.partition.draw import empty
from fedloom.data.source import Kind, Targets
from fedloom.errors import BadInput

_FORM = "sites"
"""Under which a saved partition's recipe has the form of the sites' data."""


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
    targets: Targets = "classes"
    columns: tuple[str, ...] = ()
    """Of a table, where they are agreed on."""
    fields: Fields = ()
    """The inputs that a row consists of, where there are several or rows are of unlike length."""

    def __len__(self) -> int:
        return self.places

    @property
    def classes(self) -> int:
        """Number of classes, of labels, or of numbers to predict."""
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
        form = asdict(self)
        if not self.fields:
            del form["fields"]
        about = {key: value for key, value in form.items() if key != "columns"}
        if self.targets == "classes":
            del about["targets"]  # as runs were written before there was anything else
        kind_of_data = sha256(json.dumps(about).encode()).hexdigest()
        rows = (ClientRows(empty()),) * self.places
        return Partition(rows, source=kind_of_data, recipe={_FORM: form})

    @classmethod
    def of(cls, partition: Partition) -> RemoteData | None:
        """From the partition that a server saved; None where it is of another kind of run."""
        form = partition.recipe.get(_FORM)
        if form is None:
            return None
        try:
            stated: dict[str, Any] = dict(form)
            stated |= {key: tuple(stated[key]) for key in ("shape", "class_names", "columns")}
            stated["fields"] = tuple(
                Field(**{**one, "shape": tuple(one["shape"])}) for one in stated.get("fields", ())
            )
            data = cls(**stated)
            unaltered = data.partition.source == partition.source
        except (KeyError, TypeError, ValueError):
            unaltered = False
        if not unaltered:
            raise BadInput("the form of the sites' data was altered after it was saved; restore it")
        return data

    def client(self, cid: int) -> ClientData:
        """Refused: rows stay at their site."""
        raise BadInput(f"the data of client {cid} is at its site; use the flower engine")

    def size(self, cid: int) -> int:
        """Unknown here."""
        return 0
