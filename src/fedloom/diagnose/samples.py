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
    """Inputs and labels; `owners` says whose test rows they are where they are everybody's."""

    name: str
    inputs: Tensor
    y: Tensor
    owners: Tensor
    sha256: str = ""

    def __len__(self) -> int:
        return len(self.y)


class Samples:
    """Rows of a federation, at most `rows` of each kind, chosen by `seed`."""

    def __init__(self, data: Federation, clients: int, rows: int = ROWS, seed: int = 0) -> None:
        if rows < 2:
            raise BadInput(f"rows is {rows}; a diagnostic needs at least two")
        self.data, self.clients, self.rows, self.seed = data, clients, rows, seed

    @cached_property
    def balanced(self) -> Sample:
        """Test rows of all clients, equally many of each class; of a rare class, all there are."""
        owners, rows, labels = self._pool
        most = max(1, self.rows // self.data.classes)
        shuffle = generator(self.seed, "balanced rows")
        order = torch.randperm(len(labels), generator=shuffle)
        kept = torch.cat([order[labels[order] == c][:most] for c in range(self.data.classes)])
        kept = kept[torch.randperm(len(kept), generator=shuffle)]
        return self._gathered("bal", owners[kept], rows[kept])

    @cached_property
    def pool(self) -> Sample:
        """Test rows of all clients as they come."""
        owners, rows, labels = self._pool
        order = torch.randperm(len(labels), generator=generator(self.seed, "pooled rows"))
        kept = order[: self.rows]
        return self._gathered("pool", owners[kept], rows[kept])

    def local(self, cid: int, split: str = "test") -> Sample | None:
        """A client's own rows, the classes in their proportions; None if it has none."""
        own = self.data.client(cid).split(split)
        if own is None or not len(own):
            return None
        kept = pick_rows(own.y, self.rows, self.seed)
        whose = torch.full_like(kept, cid)
        return Sample(f"local-{split}", own.x(kept), own.y[kept], whose)

    @cached_property
    def _pool(self) -> tuple[Tensor, Tensor, Tensor]:
        """Owner, row and label of every test row; where clients have none, of shared test sets."""
        shared = [shared_test_id(i) for i in range(len(self.data.shared_tests))]
        for ids in (list(range(self.clients)), shared):
            sizes = [(cid, test.y) for cid in ids if (test := self._test(cid)) is not None]
            if sizes:
                owners = torch.cat([torch.full_like(y, cid) for cid, y in sizes])
                rows = torch.cat([torch.arange(len(y)) for _, y in sizes])
                return owners, rows, torch.cat([y for _, y in sizes])
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
        which = sha256(torch.stack([owners, rows]).numpy().tobytes()).hexdigest()
        return Sample(name, inputs, y, owners, which)
