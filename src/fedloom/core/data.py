"""What the core needs of data: a client has three splits; a federation has clients by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Generator, Tensor


class Split(Protocol):
    """Rows of one client. Inputs are gathered per batch, labels are held whole."""

    @property
    def y(self) -> Tensor:
        """Targets: classes int64 [n], labels float32 [n, K] or numbers float32 [n, d]."""

    def __len__(self) -> int: ...

    @property
    def augmented(self) -> bool:
        """True if `x` with a generator differs from `x` without."""

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        """The network's input for rows `idx`; with a generator, augmented."""


def inputs_side_by_side(splits: Sequence[Split]) -> Tensor:
    """Inputs of all rows of equally long splits, [B, n, ...]: by one call where their class has a
    function of this name, because a call for each takes longer than what it fetches."""
    kind = type(splits[0])
    fetch = getattr(kind, "inputs_side_by_side", None)
    if fetch is not None and all(type(split) is kind for split in splits):
        inputs: Tensor = fetch(splits)
        return inputs
    every = torch.arange(len(splits[0]))
    return torch.stack([split.x(every) for split in splits])


@dataclass(frozen=True)
class HeldRows:
    """A split whose inputs are one tensor."""

    inputs: Tensor
    y: Tensor
    augmented = False

    def __len__(self) -> int:
        return len(self.y)

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        return self.inputs[idx]


@dataclass(frozen=True)
class ClientData:
    """One client's data."""

    train: Split
    val: Split | None
    """None where the partition made none, as for `test`."""
    test: Split | None
    classes: int
    """How many classes there are in the federation; of other targets, labels or numbers."""
    shared_tests: Mapping[str, Split] = field(default_factory=dict)
    """Test sets that belong to nobody, for protocols that test clients' models on them."""

    def split(self, name: str) -> Split | None:
        """`train`, `val` or `test` by name."""
        splits: dict[str, Split | None] = {
            "train": self.train,
            "val": self.val,
            "test": self.test,
        }
        return splits[name]


class Federation(Protocol):
    """All clients of a run, by id 0..len-1, and test sets that belong to no client."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def classes(self) -> int:
        """How many classes there are."""

    @property
    def kind(self) -> str:
        """What an input is: image, signal, table, text, or several of them (fields)."""

    @property
    def shared_tests(self) -> Mapping[str, Split]:
        """Test sets outside all clients (FedBR's rotated test domains), by name."""

    def __len__(self) -> int: ...

    def client(self, cid: int) -> ClientData: ...

    def size(self, cid: int) -> int:
        """Training rows of a client: engines begin with the clients that take longest."""


def shared_test_id(i: int) -> int:
    """The id of the i-th shared test set, below zero: to an engine it is a client that only tests.

    >>> shared_test_id(0), shared_test_id(2)
    (-1, -3)
    """
    return -1 - i


def data_of(federation: Federation, cid: int) -> ClientData:
    """A client's data by id, or a shared test set by its id below zero."""
    if cid >= 0:
        client, tests = federation.client(cid), federation.shared_tests
        return replace(client, shared_tests=tests) if tests else client
    split = _shared_test(federation, cid)
    return ClientData(split, None, split, federation.classes)


def size_of(federation: Federation, cid: int) -> int:
    """Training rows of a client, or rows of a shared test set by its id below zero."""
    return federation.size(cid) if cid >= 0 else len(_shared_test(federation, cid))


def _shared_test(federation: Federation, cid: int) -> Split:
    return list(federation.shared_tests.values())[-1 - cid]
