"""How a client's rows become train, validation and test: the five papers' habits, by name.

Every split is at random and not stratified. A client with a single row keeps it for training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedloom.data.partition.assignment import ClientRows, PackedRows
from fedloom.data.partition.draw import (
    Ints,
    apportion,
    class_totals,
    empty,
    rng,
    sort_in_parts,
    take,
    whole,
)
from fedloom.data.partition.natural import NATURAL
from fedloom.data.partition.registry import Pool, deal, partitioner
from fedloom.data.source import Source
from fedloom.errors import BadInput, PartitionError
from fedloom.registry import Registry

splits = Registry("split")

DealtRows = Literal["all", "train"]
"""Which rows are dealt: all, or those outside the official test split."""


@dataclass(frozen=True)
class Divided:
    """What a split makes: three sets of rows per client, and test sets that belong to no client."""

    clients: Sequence[ClientRows]
    shared: Mapping[str, Ints]


@dataclass(frozen=True)
class Dealer:
    """A partition expression bound to a source: called with rows, it deals them to clients."""

    source: Source
    expression: str
    clients: int | None
    seed: int

    def __call__(self, rows: Ints) -> list[Ints]:
        """These rows, divided over the clients."""
        s = self.source
        labels = np.asarray(s.y) if s.targets == "classes" else None
        pool = Pool(labels, s.classes, s.domain, s.user, len(s)).only(rows)
        return [rows[at] for at in deal(self.expression, pool, self.clients, self.seed)]

    @property
    def natural(self) -> bool:
        """Whether a row's client is a fact of the data, not a draw."""
        return partitioner(self.expression) in NATURAL

    @property
    def every_row(self) -> Ints:
        return np.arange(len(self.source), dtype=np.int64)

    @property
    def test_mask(self) -> np.ndarray:
        """The official test split; an error for a source without one."""
        mask = self.source.official_test
        if mask is None or not mask.any() or mask.all():
            raise BadInput(
                f"data {self.source.name!r} has no official test split; "
                "use a split that makes its own, like 'merged(train=0.75)'"
            )
        return mask


@splits
def merged(
    train: float = 0.75, val: float = 0.0, pool: DealtRows = "all", *, dealer: Dealer
) -> Divided:
    """Each client's rows are divided by these shares. They are dealt from all rows, official train
    and test in one pool, or with `pool="train"` from the official train rows."""
    _shares(train=train, val=val)
    if not train:
        raise BadInput("merged's train is a share above 0: a client must have something to learn")
    parts = dealer(dealer.every_row if pool == "all" else np.flatnonzero(~dealer.test_mask))
    return Divided(_ratio(parts, train, val, dealer.seed), {})


@splits
def official(
    val: float = 0.0, test_size: int | None = None, sharing: bool = False, *, dealer: Dealer
) -> Divided:
    """The official train rows are dealt; each client's test is drawn from the official test rows
    with the class proportions of its own training rows.

    `test_size` is the size of every client's test. Left out, all are one share of the client's
    training size, the largest for which no class runs out. `sharing` lets clients test on the
    same rows, as FedPAC's code does (300 each of CIFAR-10, 600 of Fashion-MNIST).
    """
    _shares(val=val)
    mask = dealer.test_mask
    if dealer.natural:
        parts = dealer(dealer.every_row)
        trains, tests = [rows[~mask[rows]] for rows in parts], [rows[mask[rows]] for rows in parts]
    else:
        trains = dealer(np.flatnonzero(~mask))
        tests = _drawn_alike(trains, np.flatnonzero(mask), test_size, sharing, dealer)
    learned = _ratio(trains, 1 - val, val, dealer.seed)
    clients = [ClientRows(c.train, c.val, test) for c, test in zip(learned, tests, strict=True)]
    return Divided(tuple(clients), {})


@splits
def shared_test(val: float = 0.2, *, dealer: Dealer) -> Divided:
    """The official train rows are dealt, `val` of each client held out; the official test rows
    are one test set for all, in `shared_tests`.
    """
    _shares(val=val)
    parts = dealer(np.flatnonzero(~dealer.test_mask))
    learned = _ratio(parts, 1 - val, val, dealer.seed)
    return Divided(learned, {"test": np.flatnonzero(dealer.test_mask)})


@splits
def capped(train: int = 500, val: float = 0.0, share: float = 0.8, *, dealer: Dealer) -> Divided:
    """At most `train` rows of each client, and at most `share` of what it has, for learning; the
    rest is its test."""
    whole(train=train)
    _shares(val=val, share=share)
    clients = []
    for i, rows in enumerate(dealer(dealer.every_row)):
        shuffled = rng(dealer.seed, "split", i).permutation(rows)
        learn = max(1, min(train, round(share * len(rows))))
        first = learn - int(val * learn + 1e-9)
        clients.append(_sorted(shuffled[:first], shuffled[first:learn], shuffled[learn:]))
    return Divided(tuple(clients), {})


@splits
def dbe(pool: DealtRows | None = None, *, dealer: Dealer) -> Divided:
    """DBE: merged pools, 75 % train, 25 % test; of Tiny-ImageNet its 100,000 official train rows
    alone, unless `pool` says otherwise."""
    if pool is None:
        two_pools = dealer.source.official_test is not None
        pool = "train" if dealer.source.name == "tiny_imagenet" and two_pools else "all"
    return merged(0.75, pool=pool, dealer=dealer)


@splits
def fedcr(*, dealer: Dealer) -> Divided:
    """FedCR: merged pools, 70 % train, 30 % test."""
    return merged(0.7, dealer=dealer)


@splits
def fedpac(test_size: int | None = None, sharing: bool = False, *, dealer: Dealer) -> Divided:
    """FedPAC: official train and test, both drawn with the client's class proportions."""
    return official(0.0, test_size, sharing, dealer=dealer)


@splits
def fedbr(val: float = 0.0, *, dealer: Dealer) -> Divided:
    """FedBR: clients train on all they have, the official test is shared by all.

    Deviation: its code holds a fifth of each client out and does not use it; `val=0.2` does so.
    """
    return shared_test(val, dealer=dealer)


@splits
def dualfed(train: int = 500, share: float = 0.8, *, dealer: Dealer) -> Divided:
    """DualFed: at most `train` images of each domain's training set; its whole test set is the
    test, and the other training images are not used.

    The training set is the official one (DomainNet), or `share` of the domain. The paper takes 500
    images (PACS, DomainNet) or 2000 (Office-Home). Its split files are not public; a share of 0.8
    gives the 1942 that it reports for all of Office-Home's Art.
    """
    whole(train=train)
    _shares(share=share)
    clients = []
    for i, rows in enumerate(dealer(dealer.every_row)):
        shuffled = rng(dealer.seed, "split", i).permutation(rows)
        if dealer.source.official_test is None:
            is_test = np.arange(len(rows)) >= max(1, round(share * len(rows)))
        else:
            is_test = dealer.test_mask[shuffled]
        if is_test.all():
            raise PartitionError(f"client {i} has no training rows; use a split that merges pools")
        clients.append(_sorted(shuffled[~is_test][:train], empty(), shuffled[is_test]))
    return Divided(tuple(clients), {})


def _ratio(parts: list[Ints], train: float, val: float, seed: int) -> PackedRows:
    sizes = np.array([len(rows) for rows in parts])
    if lacking := np.flatnonzero(sizes == 0).tolist():
        raise PartitionError(
            f"client {lacking[0]} has no training rows; use a split that merges pools"
        )
    shuffled, end = np.empty(sizes.sum(), dtype=np.int64), 0
    for i, rows in enumerate(parts):
        begin, end = end, end + len(rows)
        shuffled[begin:end] = rng(seed, "split", i).permutation(rows)
    first = np.maximum(1, (train * sizes + 1e-9).astype(np.int64))
    second = np.maximum(first, ((train + val) * sizes + 1e-9).astype(np.int64))
    of_splits = np.stack([first, second - first, sizes - second], axis=1)
    return PackedRows(sort_in_parts(shuffled, of_splits.ravel()), of_splits)


def _drawn_alike(
    trains: list[Ints], pool: Ints, size: int | None, sharing: bool, dealer: Dealer
) -> list[Ints]:
    """Test rows from `pool` for each client, with the class proportions of its training rows."""
    if dealer.source.targets != "classes":
        raise BadInput(
            f"this split draws test rows by their classes, and data {dealer.source.name!r} has"
            f" {dealer.source.targets}; use 'merged(train=0.75)' or 'shared_test'"
        )
    y, classes = np.asarray(dealer.source.y), dealer.source.classes
    gen = rng(dealer.seed, "official test")
    train_counts = np.stack([class_totals(y[rows], classes) for rows in trains])
    if size is None:
        available, needed = class_totals(y[pool], classes), train_counts.sum(axis=0)
        in_both = np.flatnonzero((needed > 0) & (available > 0))
        share = np.min(available[in_both] / needed[in_both], initial=1.0)
        counts = np.zeros_like(train_counts)
        for k in in_both:
            counts[:, k] = apportion(int(share * needed[k] + 1e-9), train_counts[:, k], gen)
    else:
        whole(test_size=size)
        counts = np.stack([apportion(size, row, gen) for row in train_counts])
    return [pool[at] for at in take(counts, y[pool], gen, sharing=sharing)]


def _sorted(*sets: Ints) -> ClientRows:
    return ClientRows(*(np.sort(rows) for rows in sets))


def _shares(**shares: Any) -> None:
    for name, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise BadInput(f"{name} is a share between 0 and 1, not {value!r}")
    if sum(v for k, v in shares.items() if k in ("train", "val")) > 1 + 1e-9:
        raise BadInput("train and val are shares of one whole; together they are more than 1")
