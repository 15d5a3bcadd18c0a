"""Few classes per client: in label order (DBE), consecutive or random (FedCR), grouped (FedPAC)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedloom.data.partition.draw import (
    TRIES,
    Ints,
    apportion,
    class_totals,
    rng,
    take,
    whole,
    wholes,
)
from fedloom.data.partition.registry import partitions
from fedloom.errors import BadInput, PartitionError


@partitions
def pathological(
    classes_per_client: int = 2,
    balanced: bool = False,
    order: Literal["label", "consecutive", "random"] = "label",
    *,
    labels: Ints,
    classes: int,
    clients: int,
    seed: int,
) -> list[Ints]:
    """Every client holds `classes_per_client` classes.

    `order` says which. "label": the classes in label order, each to the first clients that have
    room, all classes to equally many (DBE). "consecutive": client i has classes i, i+1, ... mod K
    (FedCR's code). "random": drawn for each client, so that all classes go to equally many (FedCR's
    text: of 100 clients with 5 of 10 classes, 50 hold each).

    `balanced=False` divides a class over its holders in random amounts, all rows of it (DBE).
    `balanced=True` makes clients of one size: of random classes every client gets the same amount
    of each (FedCR's text), else all are filled row by row, in turn, as far as that goes (its code).
    """
    whole(classes_per_client=classes_per_client)
    totals = class_totals(labels, classes)
    present = np.flatnonzero(totals)
    if classes_per_client > len(present):
        raise PartitionError(
            f"classes_per_client={classes_per_client} but the data has {len(present)} classes"
        )
    gen = rng(seed, "pathological")
    if order == "label":
        chosen = _in_label_order(len(present), clients, classes_per_client)
    elif order == "consecutive":
        chosen = [(i + np.arange(classes_per_client)) % len(present) for i in range(clients)]
    elif order == "random":
        chosen = _evenly_at_random(len(present), clients, classes_per_client, gen)
    else:
        raise BadInput(f"pathological's order is label, consecutive or random, not {order!r}")
    owned = np.zeros((clients, classes), dtype=bool)
    for i, own in enumerate(chosen):
        owned[i, present[own]] = True
    _enough_to_share(totals, owned)
    if not balanced:
        counts = _uneven(totals, owned, gen)
    else:
        counts = _alike(totals, owned) if order == "random" else _filled(totals, owned)
    return take(counts, labels, gen)


def _in_label_order(classes: int, clients: int, each: int) -> list[Ints]:
    """Which classes every client gets when class 0 goes to the first clients with room, then 1, ...

    A client that needs all of the classes still to come is served first: without that, numbers
    that do not divide evenly would leave the last clients short.
    """
    places = clients * each
    if places < classes:
        raise PartitionError(
            f"{clients} clients of {each} classes cannot hold all {classes} classes; "
            f"set classes_per_client to at least {-(-classes // clients)}"
        )
    room = np.full(clients, each)
    chosen: list[list[int]] = [[] for _ in range(clients)]
    for k in range(classes):
        holders = (k + 1) * places // classes - k * places // classes
        must = np.flatnonzero(room == classes - k)
        may = np.flatnonzero((room > 0) & (room < classes - k))
        for i in [*must, *may[: holders - len(must)]]:
            chosen[i].append(k)
            room[i] -= 1
    return [np.array(own, dtype=np.int64) for own in chosen]


def _evenly_at_random(
    classes: int, clients: int, each: int, gen: np.random.Generator
) -> list[Ints]:
    """Random classes for every client, such that each class goes to equally many clients, give or
    take one.

    Clients draw in turn, a class by how many clients may still have it. One that all clients still
    to come must have, to reach its number, is taken first; then the last client ends up with
    `each` different ones too.
    """
    places = apportion(clients * each, np.ones(classes), gen)
    chosen = []
    for remaining in range(clients, 0, -1):
        must = np.flatnonzero(places == remaining)
        may = np.flatnonzero((places > 0) & (places < remaining))
        own = must
        if len(may):
            odds = places[may] / places[may].sum()
            drawn = gen.choice(may, each - len(must), replace=False, p=odds)
            own = np.concatenate([must, drawn])
        places[own] -= 1
        chosen.append(own)
    return chosen


def _alike(totals: Ints, owned: np.ndarray) -> Ints:
    """The same amount of every class to each of its holders: as much as the scarcest class has."""
    holders = owned.sum(axis=0)
    held = holders > 0
    amount = int(np.min(totals[held] // holders[held]))
    return np.where(owned, amount, 0)


def _uneven(totals: Ints, owned: np.ndarray, gen: np.random.Generator) -> Ints:
    """All but the last holder of a class get between a tenth and the whole of an equal share."""
    counts = np.zeros(owned.shape, dtype=np.int64)
    for k in np.flatnonzero(owned.any(axis=0)):
        *some, last = np.flatnonzero(owned[:, k])
        share = int(totals[k]) // (len(some) + 1)
        counts[some, k] = gen.integers(max(1, share // 10), share + 1, size=len(some))
        counts[last, k] = totals[k] - counts[some, k].sum()
    return counts


def _filled(totals: Ints, owned: np.ndarray) -> Ints:
    """Clients in turn take one row, of the class furthest below its share, until one cannot.

    Each first gets one row of all its classes, so that it surely has as many as it should.
    """
    counts = owned.astype(np.int64)
    left = (totals - counts.sum(axis=0)).tolist()
    share = (totals / np.maximum(owned.sum(axis=0), 1)).tolist()
    rows_by_class = [dict.fromkeys(np.flatnonzero(row).tolist(), 1) for row in owned]
    while True:
        taken = []
        for own in rows_by_class:
            available = [k for k in own if left[k]]
            if not available:
                return counts
            k = min(available, key=lambda k: own[k] / share[k])
            own[k] += 1
            left[k] -= 1
            taken.append(k)
        counts[np.arange(len(rows_by_class)), taken] += 1


def _enough_to_share(totals: Ints, owned: np.ndarray) -> None:
    short = np.flatnonzero(owned.sum(axis=0) > totals)
    if len(short):
        k = short[0]
        raise PartitionError(
            f"class {k} has {totals[k]} rows for {owned[:, k].sum()} clients; "
            "use fewer clients or fewer classes per client"
        )


@partitions
def group_pathological(
    sizes: Sequence[int] = (3, 3, 5, 5, 8),
    allocation: Literal["random", "clustered"] = "random",
    size: int = 600,
    sharing: bool = False,
    *,
    labels: Ints,
    classes: int,
    clients: int,
    seed: int,
) -> list[Ints]:
    """Client i has `sizes[i mod G]` classes and `size` rows, evenly over its classes (FedPAC C.7).

    "random" draws the class set of each client; "clustered" draws one per group, and no two groups
    have the same. `sharing` lets clients hold the same rows where a class runs out.
    """
    whole(size=size)
    wholes(sizes=sizes)
    if max(sizes) > classes:
        raise BadInput(f"sizes={tuple(sizes)!r} must name 1 to {classes} classes for each group")
    gen = rng(seed, "group_pathological")
    if allocation == "clustered":
        groups = _unlike_sets(sizes, classes, gen)
        sets = [groups[i % len(sizes)] for i in range(clients)]
    elif allocation == "random":
        sets = [_class_set(sizes[i % len(sizes)], classes, gen) for i in range(clients)]
    else:
        raise BadInput(
            f"group_pathological's allocation is random or clustered, not {allocation!r}"
        )
    counts = np.zeros((clients, classes), dtype=np.int64)
    for i, own in enumerate(sets):
        counts[i, list(own)] = apportion(size, np.ones(len(own)), gen)
    return take(counts, labels, gen, sharing=sharing)


def _class_set(number: int, classes: int, gen: np.random.Generator) -> tuple[int, ...]:
    return tuple(sorted(gen.permutation(classes)[:number].tolist()))


def _unlike_sets(
    sizes: Sequence[int], classes: int, gen: np.random.Generator
) -> list[tuple[int, ...]]:
    sets: list[tuple[int, ...]] = []
    for number in sizes:
        drawn = (_class_set(number, classes, gen) for _ in range(TRIES))
        unlike = next((s for s in drawn if s not in sets), None)
        if unlike is None:
            raise PartitionError(
                f"{classes} classes do not give every group of {tuple(sizes)} its own class set; "
                "use fewer groups or allocation=random"
            )
        sets.append(unlike)
    return sets
