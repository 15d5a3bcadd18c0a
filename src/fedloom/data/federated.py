"""A data set divided over clients: what a run trains and tests on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fedloom.core.data import ClientData
from fedloom.data.augment import Augmentation, augmentation
from fedloom.data.load import load
from fedloom.data.normalization import AS_IS, HALF, Normalize, Scaling
from fedloom.data.partition.assignment import ClientRows, Partition, SplitName
from fedloom.data.partition.draw import Ints
from fedloom.data.partition.registry import partitioner
from fedloom.data.shift import apply
from fedloom.data.source import Kind, Source, as_array
from fedloom.data.split import Dealer, Divided, splits
from fedloom.errors import BadInput, PartitionError
from fedloom.expression import parse_one

PARTITION = "dirichlet(alpha=0.1)"
SPLIT = "merged(train=0.75)"


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A source, who holds which of its rows, and how training batches are augmented.

    >>> site = (np.arange(8, dtype=np.float32).reshape(4, 2), [0, 1, 0, 1])
    >>> data = FederatedData.from_clients([site, site])
    >>> len(data), len(data.client(1).train), data.client(1).train.x(torch.tensor([0])).shape
    (2, 3, torch.Size([1, 2]))
    """

    source: Source
    partition: Partition
    augment: str | None = None

    def __post_init__(self) -> None:
        n, maps = len(self.source), self.partition.label_maps
        packed = self.partition.packed
        used_rows = [packed.rows, *self.partition.shared.values()]
        if any(rows.max(initial=-1) >= n for rows in used_rows):
            raise BadInput(f"the partition names rows that {self.source.name!r} ({n} rows) lacks")
        if len(idle := np.flatnonzero(packed.sizes[:, 0] == 0)):
            raise PartitionError(f"client {idle[0]} has no training rows")
        if maps is not None and maps.shape != (len(self.partition), self.classes):
            raise BadInput(f"label maps are {maps.shape}, not one per client and class")
        if self.augment is not None and self.source.kind != "image":
            raise BadInput(f"only images can be augmented, and {self.source.name!r} has none")
        if self.augment is not None:
            augmentation(self.augment)  # refuses a misspelt one before anything is written

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
        *,
        split: str = SPLIT,
        seed: int = 0,
        augment: str | None = None,
        name: str = "clients",
        kind: Kind | None = None,
        class_names: Sequence[str] | None = None,
        normalize: Normalize | None = None,
    ) -> FederatedData:
        """One `(x, y)` per client: sites that bring their own arrays, in a list or by name."""
        if isinstance(clients, Mapping):
            user_names, pairs = tuple(map(str, clients)), list(clients.values())
        else:
            user_names, pairs = (), list(clients)
        if not pairs:
            raise BadInput("from_clients needs at least one client")
        titles = [f"client {name}" for name in user_names or range(len(pairs))]
        sites = [_own_arrays(pair, who) for pair, who in zip(pairs, titles, strict=True)]
        shape = sites[0][0].shape[1:]
        for who, (x, y) in zip(titles, sites, strict=True):
            if not len(x):
                raise PartitionError(f"{who} has no rows; leave it out")
            if len(x) != len(y) or x.shape[1:] != shape:
                raise BadInput(
                    f"{who} has inputs {x.shape} and {len(y)} labels; inputs of all clients "
                    f"must be shaped like the first one's, {shape}, one label each"
                )
        source = Source.from_arrays(
            np.concatenate([x for x, _ in sites]),
            np.concatenate([y for _, y in sites]),
            name=name,
            kind=kind,
            class_names=class_names,
            user=np.repeat(np.arange(len(sites)), [len(x) for x, _ in sites]),
            normalize=normalize,
        )
        named = replace(source, user_names=user_names)
        return federate(named, "by_user", len(sites), seed, split, augment=augment)

    def __len__(self) -> int:
        return len(self.partition)

    @property
    def client_names(self) -> list[str]:
        """What each client is called: its site's or user's name, or its number."""
        return self.partition.client_names

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.source.shape

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.source.classes

    @property
    def kind(self) -> Kind:
        """What an input is."""
        return self.source.kind

    @property
    def vocabulary(self) -> int:
        """Number of token ids of text; 0 otherwise."""
        return self.source.vocabulary

    def client(self, cid: int) -> ClientData:
        """One client's splits; inputs are read only when a batch needs them."""
        if not 0 <= cid < len(self):
            raise BadInput(f"there is no client {cid}; ids go from 0 to {len(self) - 1}")
        rows, maps = self.partition.clients[cid], self.partition.label_maps
        label_map, inputs = None if maps is None else maps[cid], self._inputs_of(cid)
        train, val, test = (self._split(r, label_map, inputs) if len(r) else None for r in rows)
        assert train is not None  # the constructor refuses clients without training rows
        return ClientData(train, val, test, self.classes)

    def size(self, cid: int) -> int:
        """Training rows of a client."""
        return len(self.partition.clients[cid].train)

    @property
    def shared_tests(self) -> Mapping[str, Rows]:
        """Test sets that belong to no client, by name."""
        shared = self.partition.shared
        return {name: self._split(rows, None, self._inputs) for name, rows in shared.items()}

    def scaling(self, cid: int | None = None) -> Scaling:
        """The mean and deviation that a client's inputs are normalised by, in all of its splits;
        for None those of the test sets that belong to no client.

        They are measured over training rows only: of all clients for `normalize="channel"`, of the
        client for `"site"` (of all clients for a test set that belongs to none).
        """
        how = self.source.normalize
        if how in ("half", "none"):
            return HALF if how == "half" else AS_IS
        if how == "channel" or cid is None:
            return self._common_scaling
        if cid not in self._site_scalings:
            train = self.partition.clients[cid].train
            self._site_scalings[cid] = Scaling.over(self.source.x, train)
        return self._site_scalings[cid]

    def counts(self, split: SplitName | None = None) -> Ints:
        """Samples of each client and class, of one split or of all. [N, K]"""
        return self.partition.counts(np.asarray(self.source.y), self.classes, split)

    def shared(self) -> FederatedData:
        """The same with its arrays in memory-mapped files: cheap to send to other processes."""
        return _rebuild(self.source.memory_mapped(), *self._besides_source)

    def in_memory(self) -> FederatedData:
        """The same with its arrays in memory: for machines that do not see the files."""
        return _rebuild(self.source.in_memory(), *self._besides_source)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.source, *self._besides_source)

    @property
    def _besides_source(self) -> tuple[Partition, str | None, Scaling | None]:
        """What a copy of this data needs beside the rows, so that it measures nothing again."""
        common = self._common_scaling if self.source.normalize == "channel" else None
        return self.partition, self.augment, common

    @cached_property
    def _common_scaling(self) -> Scaling:
        trains = [client.train for client in self.partition.clients]
        return Scaling.over(self.source.x, np.unique(np.concatenate(trains)))

    @cached_property
    def _site_scalings(self) -> dict[int, Scaling]:
        """Of the clients that were asked for."""
        return {}

    @cached_property
    def _inputs(self) -> Inputs:
        """Of the test sets that belong to no client."""
        return Inputs.of(self.source, self.scaling(), self.augment)

    def _inputs_of(self, cid: int) -> Inputs:
        if self.source.normalize != "site":
            return self._inputs
        return self._raw_inputs.scaled(self.scaling(cid))

    @cached_property
    def _raw_inputs(self) -> Inputs:
        return Inputs.of(self.source, AS_IS, self.augment)

    def _split(self, rows: Ints, label_map: Ints | None, inputs: Inputs) -> Rows:
        y = np.asarray(self.source.y)[rows]
        labels = y if label_map is None else label_map[y]
        return Rows(torch.from_numpy(labels), torch.from_numpy(rows), inputs)


@dataclass(frozen=True, eq=False)
class Inputs:
    """All rows of a source as one tensor, and what turns some of them into a network's input."""

    x: Tensor
    scale: Tensor | float
    offset: Tensor | float
    augment: Augmentation | None

    @classmethod
    def of(cls, source: Source, scaling: Scaling, augment: str | None) -> Inputs:
        """Inputs of a source, normalised by a mean and deviation."""
        with warnings.catch_warnings():
            # A memory map is read-only on purpose, and this tensor is only read.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            x = torch.from_numpy(source.x)
        steps = None if augment is None else augmentation(augment)
        return cls(x, *scaling.factors(x), steps)

    def scaled(self, scaling: Scaling) -> Inputs:
        """The same rows, which are not copied, normalised by another mean and deviation."""
        scale, offset = scaling.factors(self.x)
        return replace(self, scale=scale, offset=offset)

    def __call__(self, rows: Tensor, gen: Generator | None) -> Tensor:
        x = self.x.index_select(0, rows)
        if x.dtype == torch.int32:  # token ids
            return x.long()
        if gen is not None and self.augment is not None:
            x = self.augment(x, gen)
        return torch.mul(x, self.scale).add_(self.offset)


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a source, as the core's `Split`: labels in memory, inputs gathered per batch."""

    y: Tensor  # int64 [n]
    _rows: Tensor = field(repr=False)
    _inputs: Inputs = field(repr=False)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def augmented(self) -> bool:
        """Does `x` with a generator differ from `x` without?"""
        return self._inputs.augment is not None

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        """The network's input for rows `idx`; with a generator, augmented."""
        return self._inputs(self._rows.index_select(0, idx), gen)


def _rebuild(
    source: Source, partition: Partition, augment: str | None, common: Scaling | None
) -> FederatedData:
    """A copy of data, with what was measured over all training rows."""
    data = FederatedData(source, partition, augment)
    if common is not None:
        data.__dict__["_common_scaling"] = common  # where the cached property keeps it
    return data


def _own_arrays(pair: Any, who: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise BadInput(f"{who} is {type(pair).__name__}, not a pair (x, y)")
    x, y = as_array(pair[0], "x", who), as_array(pair[1], "y", who)
    if not x.ndim or not y.ndim:
        raise BadInput(f"{who} has a single number for its inputs or labels; give one per row")
    return x, y


def divide(
    source: Source,
    partition: str = PARTITION,
    clients: int | None = None,
    seed: int = 0,
    split: str = SPLIT,
) -> Partition:
    """Who holds which rows; save it, and `federate` takes it in place of an expression."""
    dealer = Dealer(source, partition, clients, seed)
    divided: Divided = splits.build(parse_one(split), dealer=dealer)
    recipe = {"partition": partition, "split": split, "seed": seed, "data": source.name}
    names = _natural_names(source, partition, divided.clients)
    return Partition(divided.clients, divided.shared, None, source.fingerprint, recipe, names)


def federate(
    data: Any,
    partition: str | Partition = PARTITION,
    clients: int | None = None,
    seed: int = 0,
    split: str = SPLIT,
    shift: str | None = None,
    augment: str | None = None,
) -> FederatedData:
    """Divide data over clients.

    `data` is a source, or whatever `load` makes one of: a name, a path, a table, a pair `(x, y)`.
    `partition` is an expression, or a saved partition, which has its own clients and split.
    `clients=None` is 20, or as many as the data has where domains or users are the clients.

    >>> len(federate("digits", "iid", clients=5))
    5
    """
    if isinstance(data, FederatedData):
        raise BadInput("this data is divided over clients already; federate takes its `source`")
    source = load(data)
    if isinstance(partition, str):
        divided = divide(source, partition, clients, seed, split)
    else:
        _check_saved(partition, source, clients, split)
        divided = partition
    if shift is not None:
        source, divided = apply(shift, source, divided, seed)
    return FederatedData(source, divided, augment)


def _natural_names(
    source: Source, partition: str, clients: Sequence[ClientRows]
) -> tuple[str, ...]:
    """The names of clients that are users or domains of the data; otherwise none."""
    name = partitioner(partition)
    if name == "by_user" and source.user is not None and source.user_names:
        return tuple(source.user_names[source.user[c.all[0]]] for c in clients)
    if name == "by_domain" and source.domain is not None:
        domains = [source.domain_names[source.domain[c.all[0]]] for c in clients]
        return tuple(_distinct(domains))
    return ()


def _distinct(names: list[str]) -> list[str]:
    """Names that occur several times, numbered.

    >>> _distinct(["art", "photo", "photo"])
    ['art', 'photo 1', 'photo 2']
    """
    numbers = {name: iter(range(1, len(names) + 1)) for name in names}
    return [name if names.count(name) == 1 else f"{name} {next(numbers[name])}" for name in names]


def _check_saved(partition: Partition, source: Source, clients: int | None, split: str) -> None:
    if partition.source and partition.source != source.fingerprint:
        raise BadInput(
            f"the saved partition is of other data than {source.name!r} "
            f"(fingerprint {partition.source[:12]}, not {source.fingerprint[:12]}); make it again"
        )
    if clients is not None and clients != len(partition):
        raise BadInput(f"the saved partition has {len(partition)} clients, not {clients}")
    saved_split = partition.recipe.get("split", SPLIT)
    if split not in (SPLIT, saved_split):
        raise BadInput(
            f"the saved partition is split by {saved_split!r}, not {split!r}; leave split out"
        )
