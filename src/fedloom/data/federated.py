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
from fedloom.core.fields import Fields
from fedloom.core.flat_rows import without_padding
from fedloom.data import several_inputs
from fedloom.data.arrays import as_array
from fedloom.data.augment import Augmentation, augmentation
from fedloom.data.load import load
from fedloom.data.normalization import AS_IS, HALF, Normalize, Scaling, per_number
from fedloom.data.partition.assignment import ClientRows, Partition, SplitName
from fedloom.data.partition.draw import Ints
from fedloom.data.partition.registry import partitioner
from fedloom.data.shift import apply
from fedloom.data.source import Kind, Source, Targets
from fedloom.data.split import Dealer, Divided, splits
from fedloom.errors import BadInput, PartitionError
from fedloom.expression import parse_one

PARTITION = "dirichlet(alpha=0.1)"
SPLIT = "merged(train=0.75)"
CLIENTS_AT_HAND = 4096
"""Whose splits stay in memory: row numbers, and labels once they are asked for."""


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
        kind: several_inputs.Kinds = None,
        class_names: Sequence[str] | None = None,
        normalize: Normalize | None = None,
        targets: Targets | None = None,
        longest: several_inputs.Longest = None,
    ) -> FederatedData:
        """One `(x, y)` per client: sites that bring their own arrays, in a list or by name; `x` may
        be several inputs, or rows of unlike length (`Source.from_arrays`)."""
        if isinstance(clients, Mapping):
            user_names, pairs = tuple(map(str, clients)), list(clients.values())
        else:
            user_names, pairs = (), list(clients)
        if not pairs:
            raise BadInput("from_clients needs at least one client")
        titles = [f"client {name}" for name in user_names or range(len(pairs))]
        sites = [_own_pair(pair, who) for pair, who in zip(pairs, titles, strict=True)]
        if longest is not None or any(several_inputs.several(x, len(y)) for x, y in sites):
            x = _joined_inputs(sites, titles)
        else:
            x = _joined_arrays(sites, titles)
        source = Source.from_arrays(
            x,
            np.concatenate([y for _, y in sites]),
            name=name,
            kind=kind,
            class_names=class_names,
            user=np.repeat(np.arange(len(sites)), [len(y) for _, y in sites]),
            normalize=normalize,
            targets=targets,
            longest=longest,
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
        """Number of classes, of labels, or of numbers to predict."""
        return self.source.classes

    @property
    def targets(self) -> Targets:
        """What a row's target is: classes, labels or numbers."""
        return self.source.targets

    @property
    def kind(self) -> Kind:
        """What an input is."""
        return self.source.kind

    @property
    def vocabulary(self) -> int:
        """Number of token ids of text; 0 otherwise."""
        return self.source.vocabulary

    @property
    def fields(self) -> Fields:
        """The inputs that a row divides into, where there are several or rows are of unlike
        length."""
        return self.source.fields

    def client(self, cid: int) -> ClientData:
        """One client's splits; inputs are read only when a batch needs them."""
        if not 0 <= cid < len(self):
            raise BadInput(f"there is no client {cid}; ids go from 0 to {len(self) - 1}")
        client = self._at_hand.pop(cid, None) or self._client(cid)
        self._at_hand[cid] = client
        if len(self._at_hand) > CLIENTS_AT_HAND:
            del self._at_hand[next(iter(self._at_hand))]
        return client

    @cached_property
    def _at_hand(self) -> dict[int, ClientData]:
        """The clients asked for last, the latest at the end: to make their splits and labels anew
        in every round is felt by small clients."""
        return {}

    def _client(self, cid: int) -> ClientData:
        rows, maps = self.partition.clients[cid], self.partition.label_maps
        label_map, inputs = None if maps is None else maps[cid], self._inputs_of(cid)
        train, val, test = (
            self._split(r, label_map, inputs, (cid, of)) if len(r) else None
            for r, of in zip(rows, ("train", "val", "test"), strict=True)
        )
        assert train is not None  # the constructor refuses clients without training rows
        return ClientData(train, val, test, self.classes)

    def size(self, cid: int) -> int:
        """Training rows of a client."""
        return int(self.partition.packed.sizes[cid, 0])

    @property
    def shared_tests(self) -> Mapping[str, Rows]:
        """Test sets that belong to no client, by name."""
        shared = self.partition.shared
        return {
            name: self._split(rows, None, self._inputs, ("shared", name))
            for name, rows in shared.items()
        }

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
            self._site_scalings[cid] = Scaling.over(self.source.x, train, self.fields)
        return self._site_scalings[cid]

    def counts(self, split: SplitName | None = None) -> Ints:
        """Samples of each client and class, of one split or of all, [N, K], in the order of
        `counted`: of labels the rows that have each, of numbers all rows, [N, 1]."""
        if self.targets != "classes":
            y = np.asarray(self.source.y)
            each = y.astype(np.int64) if self.targets == "labels" else np.ones((len(y), 1), int)
            rows_of = [
                c.all if split is None else getattr(c, split) for c in self.partition.clients
            ]
            return np.stack([each[rows].sum(axis=0) for rows in rows_of])
        return self.partition.counts(np.asarray(self.source.y), self.classes, split)

    @property
    def counted(self) -> tuple[str, ...]:
        """The names of what `counts` counts."""
        return ("rows",) if self.targets == "numbers" else self.source.class_names

    def training_targets(self) -> Tensor:
        """The targets of all clients' training rows, in the order of clients."""
        return torch.from_numpy(np.asarray(self.source.y)[self.partition.packed.split("train")])

    def scaled_as(self, federation: FederatedData) -> FederatedData:
        """The same rows, normalised by what the clients of another federation have in common; with
        `site` still each client by its own."""
        common = federation._common_scaling if self.source.normalize == "channel" else None
        return _rebuild(self.source, self.partition, self.augment, common)

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
        trains = self.partition.packed.split("train")
        return Scaling.over(self.source.x, np.unique(trains), self.fields)

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
        """As they are: with `site` no client needs what all training rows have in common."""
        return Inputs.of(self.source, AS_IS, self.augment)

    def _split(
        self, rows: Ints, label_map: Ints | None, inputs: Inputs, name: tuple[int | str, str]
    ) -> Rows:
        return Rows(rows, np.asarray(self.source.y), label_map, inputs, name)


@dataclass(frozen=True, eq=False)
class Inputs:
    """All rows of a source as one tensor, and what turns some of them into a network's input."""

    x: Tensor
    scale: Tensor | float
    offset: Tensor | float
    augment: Augmentation | None
    fields: Fields = ()

    @classmethod
    def of(cls, source: Source, scaling: Scaling, augment: str | None) -> Inputs:
        """Inputs of a source, normalised by a mean and deviation."""
        with warnings.catch_warnings():
            # A memory map is read-only on purpose, and this tensor is only read.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            x = torch.from_numpy(source.x)
        steps = None if augment is None else augmentation(augment)
        return cls(x, 1.0, 0.0, steps, source.fields).scaled(scaling)

    def scaled(self, scaling: Scaling) -> Inputs:
        """The same rows, which are not copied, normalised by this mean and deviation: in one go,
        as `x * scale + offset`."""
        if self.fields:
            scale, offset = map(torch.from_numpy, per_number(scaling, self.fields))
            return replace(self, scale=scale, offset=offset)
        per_channel = (-1, *[1] * (self.x.ndim - 2))
        std = torch.tensor(scaling.std).view(per_channel)
        unit = 255.0 if self.x.dtype == torch.uint8 else 1.0
        scale, offset = 1 / (unit * std), -torch.tensor(scaling.mean).view(per_channel) / std
        if scale.numel() == offset.numel() == 1:
            return replace(self, scale=scale.item(), offset=offset.item())
        return replace(self, scale=scale, offset=offset)

    def __call__(self, rows: Tensor, gen: Generator | None) -> Tensor:
        x = self.x.index_select(0, rows)
        if x.dtype == torch.int32:  # token ids
            return x.long()
        if gen is not None and self.augment is not None:
            x = self.augment(x, gen)
        inputs = torch.mul(x, self.scale).add_(self.offset)
        return without_padding(self.fields, inputs) if self.fields else inputs


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a source, as the core's `Split`: labels in memory once they are asked for,
    inputs gathered per batch."""

    _numbers: Ints = field(repr=False)
    _labels: np.ndarray = field(repr=False)
    """Of the whole source."""
    _label_map: Ints | None = field(repr=False)
    _inputs: Inputs = field(repr=False)
    name: tuple[int | str, str]
    """Client and split: the same rows have it whenever they are asked for."""

    @cached_property
    def y(self) -> Tensor:
        """Targets of the rows."""
        own = self._labels[self._numbers]
        return torch.from_numpy(own if self._label_map is None else self._label_map[own])

    @cached_property
    def _rows(self) -> Tensor:
        return torch.from_numpy(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def augmented(self) -> bool:
        """Does `x` with a generator differ from `x` without?"""
        return self._inputs.augment is not None

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        """The network's input for rows `idx`; with a generator, augmented."""
        return self._inputs(self._rows.index_select(0, idx), gen)

    @staticmethod
    def inputs_side_by_side(splits: Sequence[Rows]) -> Tensor:
        """Inputs of all rows of equally long splits, [B, n, ...]."""
        rows = torch.stack([split._rows for split in splits])
        if any(split._inputs is not splits[0]._inputs for split in splits):  # each its own scale
            return torch.stack([s._inputs(own, None) for s, own in zip(splits, rows, strict=True)])
        inputs = splits[0]._inputs(rows.flatten(), None)
        return inputs.view(*rows.shape, *inputs.shape[1:])


def _rebuild(
    source: Source, partition: Partition, augment: str | None, common: Scaling | None
) -> FederatedData:
    """A copy of data, with what was measured over all training rows."""
    data = FederatedData(source, partition, augment)
    if common is not None:
        data.__dict__["_common_scaling"] = common  # where the cached property keeps it
    return data


def _own_pair(pair: Any, who: str) -> tuple[Any, np.ndarray]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise BadInput(f"{who} is {type(pair).__name__}, not a pair (x, y)")
    y = as_array(pair[1], f"data {who!r}: y")
    if not y.ndim:
        raise BadInput(f"{who} has a single number for its inputs or labels; give one per row")
    return pair[0], y


def _joined_arrays(sites: Sequence[tuple[Any, np.ndarray]], titles: Sequence[str]) -> np.ndarray:
    """The inputs of all clients, one array each."""
    arrays = []
    for who, (inputs, y) in zip(titles, sites, strict=True):
        x = as_array(inputs, f"data {who!r}: x")
        if not x.ndim:
            raise BadInput(f"{who} has a single number for its inputs or labels; give one per row")
        arrays.append(x)
        shape = arrays[0].shape[1:]
        if not len(x):
            raise PartitionError(f"{who} has no rows; leave it out")
        if len(x) != len(y) or x.shape[1:] != shape:
            raise BadInput(
                f"{who} has inputs {x.shape} and {len(y)} labels; inputs of all clients "
                f"must be shaped like the first one's, {shape}, one label each"
            )
    return np.concatenate(arrays)


def _joined_inputs(sites: Sequence[tuple[Any, np.ndarray]], titles: Sequence[str]) -> Any:
    """The same of several inputs, or of rows of unlike length."""
    for who, (inputs, y) in zip(titles, sites, strict=True):
        if not len(y):
            raise PartitionError(f"{who} has no rows; leave it out")
        several_inputs.check_rows(inputs, len(y), who)
    return several_inputs.joined(sites)


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
