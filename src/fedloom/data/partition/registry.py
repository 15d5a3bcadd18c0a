"""`dominant(size=1200) + quantity(sizes=[300, 600, 1200])`: a partitioner, then modifiers.

A partitioner divides labels over clients. Its own arguments come first and may be positional in an
expression; what it needs of the data are keyword-only arguments, filled by name:

    labels [n], classes (K), rows (n), clients (N), seed, domain [n] or None, user [n] or None

One that takes `labels` is refused where rows have no classes, unless it takes None for them.
It returns one array of positions into the rows per client. A modifier gets those as `parts`, with
`labels`, `classes` and `seed`, and returns thinner ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import get_args

from fedloom.argument_types import argument_types
from fedloom.data.partition.draw import Ints, whole
from fedloom.errors import BadInput, PartitionError
from fedloom.expression import Call, parse
from fedloom.registry import Registry

partitions = Registry("partition", "fedloom.data.partition", "fedloom.partitions")
"""Partitions by name."""
register_partition = partitions
"""Decorator for a partition of one's own: a function that gives every client its rows."""
modifiers = Registry("partition modifier", "fedloom.data.partition")

CLIENTS = 20
"""Number of clients where none is set and the data has no natural number of them."""


@dataclass(frozen=True)
class Pool:
    """The rows of a source that are to be divided, as a partitioner sees them."""

    labels: Ints | None
    """The classes; None where rows have none."""
    classes: int
    domain: Ints | None = None
    user: Ints | None = None
    rows: int = -1
    """How many there are; by default as many as labels."""

    def __post_init__(self) -> None:
        if self.labels is not None:
            object.__setattr__(self, "rows", len(self.labels))

    def only(self, rows: Ints) -> Pool:
        """The pool of these rows alone."""
        labels, domain, user = (
            None if a is None else a[rows] for a in (self.labels, self.domain, self.user)
        )
        return Pool(labels, self.classes, domain, user, len(rows))


def deal(expression: str, pool: Pool, clients: int | None, seed: int) -> list[Ints]:
    """Positions into the pool for each client; an error where a client would get no rows.

    `clients=None` is 20, or as many as the data has domains or users where these are the clients.

    >>> import numpy as np
    >>> pool = Pool(np.array([0, 0, 1, 1]), classes=2)
    >>> [rows.tolist() for rows in deal("pathological(1, order=label)", pool, 2, seed=0)]
    [[0, 1], [2, 3]]
    """
    first, *rest = _calls(expression)
    whole(clients=CLIENTS if clients is None else clients)
    if not pool.rows:
        raise PartitionError(f"there are no rows for {expression!r} to divide")
    if pool.labels is None:
        for call, registry in [(first, partitions), *((call, modifiers) for call in rest)]:
            _check_without_classes(call, registry)
    context = {
        "labels": pool.labels,
        "classes": pool.classes,
        "rows": pool.rows,
        "seed": seed,
    }
    parts: list[Ints] = partitions.build(
        first, **context, clients=clients or CLIENTS, domain=pool.domain, user=pool.user
    )
    for call in rest:
        parts = modifiers.build(call, **context, parts=parts)
    if clients is not None and len(parts) != clients:
        raise PartitionError(
            f"{first.name} makes {len(parts)} clients of this data, not {clients}; "
            f"say clients={len(parts)} or leave it out"
        )
    lacking = [i for i, rows in enumerate(parts) if not len(rows)]
    if lacking:
        raise PartitionError(
            f"{expression!r} leaves client {lacking[0]} without a single row "
            f"({len(lacking)} of {len(parts)} clients); use fewer clients or a milder partition"
        )
    return parts


def _check_without_classes(call: Call, registry: Registry) -> None:
    """Refuse what divides by classes, for rows that have none."""
    entry = registry[call.name]
    takes = argument_types(entry).get("labels")
    if "labels" in signature(entry).parameters and type(None) not in get_args(takes):
        raise PartitionError(
            f"{call.name} divides rows by their classes, and these have none; use iid, by_user or"
            " by_domain"
        )


def partitioner(expression: str) -> str:
    """The registered name of the expression's partitioner."""
    return partitions.canonical(_calls(expression)[0].name)


def _calls(expression: str) -> list[Call]:
    calls = parse(expression)
    if calls[0].name in modifiers:
        raise BadInput(
            f"{calls[0].name!r} changes a partition; write it after one, like 'iid + {calls[0]}'"
        )
    for call in calls[1:]:
        if call.name in partitions:
            raise BadInput(
                f"{expression!r} names two partitions; only modifiers "
                f"({', '.join(modifiers)}) may follow a '+'"
            )
    return calls
