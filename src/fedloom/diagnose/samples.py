"""Which rows a diagnostic looks at: the same for everybody, or each client's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor

from fedloom.analysis.tsne import pick_rows
from fedloom.core.data import Federation, Split, data_of, shared_test_id
from fedloom.core.rng import generator
from fedloom.errors import BadInput

ROWS = 500


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs and labels of some rows."""

    name: str
    inputs: Tensor
    y: Tensor
    owners: Tensor
    """The client of each row."""
    sha256: str = ""
    """Of owners and row numbers, where the rows are of several clients."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_for_all(self) -> bool:
        """Are these rows the same, whichever client is looked at?"""
        return bool(self.sha256)


class Samples:
    """Rows of a federation, at most `rows` of each kind, chosen by `seed`."""

    def __init__(self, data: Federation, clients: int, rows: int = ROWS, seed: int = 0) -> None:
        if rows < 2:
            raise BadInput(f"rows is {rows}; a diagnostic needs at least two")
        self.data, self.clients, self.rows, self.seed = data, clients, rows, seed

    @cached_property
    def balanced(self) -> Sample:
        """Test rows of all clients, equally many of each class; of a rare class, all of them."""
        owners, rows, labels = self._pool
        most = max(1, self.rows // self.data.classes)
        shuffle = generator(self.seed, "balanced rows")
        order = torch.randperm(len(labels), generator=shuffle)
        some = torch.cat([order[labels[order] == c][:most] for c in range(self.data.classes)])
        some = some[torch.randperm(len(some), generator=shuffle)]
        return self._gathered("bal", owners[some], rows[some])

    @cached_property
    def pool(self) -> Sample:
        """Test rows of all clients as they come."""
        owners, rows, labels = self._pool
        order = torch.randperm(len(labels), generator=generator(self.seed, "pooled rows"))
        some = order[: self.rows]
        return self._gathered("pool", owners[some], rows[some])

    def local(self, cid: int, split: str = "test") -> Sample | None:
        """A client's own rows, the classes in their proportions; None if it has none."""
        own = self.data.client(cid).split(split)
        if own is None or not len(own):
            return None
        some = pick_rows(own.y, self.rows, self.seed)
        owners = torch.full_like(some, cid)
        return Sample(f"local-{split}", own.x(some), own.y[some], owners)

    @cached_property
    def _pool(self) -> tuple[Tensor, Tensor, Tensor]:
        """Owner, row and label of every test row; where clients have none, of shared test sets."""
        shared = [shared_test_id(i) for i in range(len(self.data.shared_tests))]
        for ids in (list(range(self.clients)), shared):
            labels = [(cid, test.y) for cid in ids if (test := self._test(cid)) is not None]
            if labels:
                owners = torch.cat([torch.full_like(y, cid) for cid, y in labels])
                rows = torch.cat([torch.arange(len(y)) for _, y in labels])
                return owners, rows, torch.cat([y for _, y in labels])
        raise BadInput("there are no test rows to look at; choose a split that makes some")

    def _test(self, owner: int) -> Split | None:
        test = data_of(self.data, owner).test
        return test if test is not None and len(test) else None

    def _gathered(self, name: str, owners: Tensor, rows: Tensor) -> Sample:
        inputs: Tensor | None = None
        y = torch.empty_like(rows)
        for owner in sorted(set(owners.tolist())):
            test, mine = self._test(owner), owners == owner
            assert test is not None
            x = test.x(rows[mine])
            if inputs is None:
                inputs = x.new_empty(len(rows), *x.shape[1:])
            inputs[mine], y[mine] = x, test.y[rows[mine]]
        assert inputs is not None
        digest = sha256(torch.stack([owners, rows]).numpy().tobytes()).hexdigest()
        return Sample(name, inputs, y, owners, digest)
