"""Clients the data itself has (domains, users), and no skew at all."""

from __future__ import annotations

import numpy as np

from fedloom.data.partition.draw import Ints, in_parts, rng, sort_in_parts, whole
from fedloom.data.partition.registry import partitions
from fedloom.errors import PartitionError

NATURAL = frozenset({"by_domain", "by_user"})
"""Partitioners in which a row's client is a fact, not a draw."""


@partitions
def by_domain(
    per_domain: int = 1, *, labels: Ints | None, classes: int, domain: Ints | None
) -> list[Ints]:
    """A domain is a client (DualFed); with `per_domain=2` it is two, of half of the classes each.

    FedBR's PACS: of 7 classes the first client of a domain has 0-3, the second 4-6.
    """
    whole(per_domain=per_domain)
    if domain is None:
        raise PartitionError(
            "by_domain needs data with domains, and this source names none; "
            "name the column of a table by domain=... (--domain on the command line)"
        )
    if labels is None:
        if per_domain > 1:
            raise PartitionError(
                f"per_domain = {per_domain} divides a domain by classes, and rows have none; leave"
                " it out"
            )
        return [np.flatnonzero(domain == d) for d in np.unique(domain)]
    if per_domain > classes:
        raise PartitionError(f"per_domain={per_domain} but there are only {classes} classes")
    blocks = np.array_split(np.arange(classes), per_domain)
    return [
        np.flatnonzero((domain == d) & np.isin(labels, block))
        for d in np.unique(domain)
        for block in blocks
    ]


@partitions
def by_user(min_size: int = 1, *, user: Ints | None) -> list[Ints]:
    """A user is a client; users with fewer than `min_size` rows are left out."""
    whole(min_size=min_size)
    if user is None:
        raise PartitionError(
            "by_user needs data with natural users, and this source names none; "
            "name the column of a table by client=... (--client on the command line)"
        )
    _, sizes = np.unique(user, return_counts=True)
    if not (sizes >= min_size).any():
        raise PartitionError(f"no user has {min_size} rows; the largest has {sizes.max()}")
    theirs = in_parts(np.argsort(user, kind="stable"), sizes)
    return [rows for rows in theirs if len(rows) >= min_size]


@partitions
def iid(*, rows: int, clients: int, seed: int) -> list[Ints]:
    """Rows shuffled and dealt out; client sizes differ by one at most."""
    shuffled = rng(seed, "iid").permutation(rows)
    sizes = rows // clients + (np.arange(clients) < rows % clients)
    return in_parts(sort_in_parts(shuffled, sizes), sizes)
