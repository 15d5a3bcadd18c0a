"""Label skew from Dirichlet draws: class-wise (DBE), client-wise (FedCR), and LDA (FedBR)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedloom.data.partition.draw import (
    TRIES,
    Floats,
    Ints,
    class_totals,
    positive,
    rng,
    take,
    whole,
)
from fedloom.data.partition.registry import partitions
from fedloom.errors import BadInput, PartitionError


@partitions
def dirichlet(
    alpha: float = 0.1,
    min_size: int | None = None,
    capped: bool = True,
    *,
    labels: Ints,
    classes: int,
    clients: int,
    seed: int,
) -> list[Ints]:
    """Class-wise: every class is divided over the clients by shares from Dir(alpha). All rows go.

    As in DBE: a client that already holds n/N rows gets none of the later classes (`capped`; FedPAC
    C.8 has no such rule), and the draw is repeated until each client has `min_size` rows. Left
    out, `min_size` is DBE's 40, or a tenth of the mean client where that is less.
    """
    positive(alpha=alpha)
    n = len(labels)
    least = min(40, max(1, n // (10 * clients))) if min_size is None else min_size
    whole(min_size=least)
    if least * clients > n:
        raise PartitionError(
            f"{clients} clients of at least {least} rows need {least * clients} rows, there are "
            f"{n}; use at most {n // least} clients or min_size={n // clients}"
        )
    gen, totals = rng(seed, "dirichlet"), class_totals(labels, classes)
    for _ in range(TRIES):
        counts = _class_wise(totals, alpha, clients, capped, gen)
        if counts.sum(axis=1).min() >= least:
            return take(counts, labels, gen)
    raise PartitionError(
        f"{TRIES} draws of dirichlet(alpha={alpha}) never gave each of {clients} clients "
        f"{least} of {n} rows; use fewer clients, a larger alpha or a smaller min_size"
    )


def _class_wise(
    totals: Ints, alpha: float, clients: int, capped: bool, gen: np.random.Generator
) -> Ints:
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for k in np.flatnonzero(totals):
        open_to = sizes < totals.sum() / clients if capped else np.ones(clients, dtype=bool)
        share = gen.dirichlet(np.full(clients, float(alpha))) * open_to
        # A small alpha may put all of its mass on clients that are already full.
        share = share / share.sum() if share.sum() > 0 else open_to / open_to.sum()
        counts[:, k] = np.diff(np.rint(np.cumsum(share) * totals[k]).astype(np.int64), prepend=0)
        sizes += counts[:, k]
    return counts


@partitions
def dirichlet_equal(
    alpha: float = 0.3, *, labels: Ints, classes: int, clients: int, seed: int
) -> list[Ints]:
    """Client-wise: each client's classes come from its own Dir(alpha); clients are of equal size.

    FedCR's non-iid_2. Clients draw side by side and without replacement, each n // N rows; where
    they draw more rows of a class than it has, lots decide who gets them, and the others draw again
    among the classes that have rows left. So no class that runs out can stop the draw.
    """
    positive(alpha=alpha)
    _enough(labels, clients)
    gen, left = rng(seed, "dirichlet_equal"), class_totals(labels, classes)
    taste = gen.dirichlet(np.full(classes, float(alpha)), size=clients)
    counts = np.zeros((clients, classes), dtype=np.int64)
    quota = np.full(clients, len(labels) // clients)
    while quota.any():
        wish = np.stack(
            [gen.multinomial(q, _among(p, left)) for q, p in zip(quota, taste, strict=True)]
        )
        for k in np.flatnonzero(wish.sum(axis=0) > left):
            wish[:, k] = gen.multivariate_hypergeometric(wish[:, k], left[k])
        counts += wish
        left -= wish.sum(axis=0)
        quota -= wish.sum(axis=1)
    return take(counts, labels, gen)


@partitions
def lda(
    alpha: float = 0.1,
    concentration: Literal["total", "per_class"] = "total",
    *,
    labels: Ints,
    classes: int,
    clients: int,
    seed: int,
) -> list[Ints]:
    """Latent Dirichlet allocation: clients of equal size, one after the other, without replacement.

    FedBR. A client draws its class proportions q, then n // N labels from q; a class that is used
    up is zeroed and q renormalised. `concentration` says what alpha counts: "total" draws q from
    Dir(alpha * p), p the frequencies of the rows left (FedBR's code on MNIST and CIFAR-10, Hsu et
    al.); "per_class" draws it from Dir(alpha) over the classes left (its code on CIFAR-100). With
    ten classes "total" is ten times more skewed.
    """
    positive(alpha=alpha)
    if concentration not in ("total", "per_class"):
        raise BadInput(f"lda's concentration is 'total' or 'per_class', not {concentration!r}")
    _enough(labels, clients)
    gen, left = rng(seed, "lda"), class_totals(labels, classes)
    counts = np.zeros((clients, classes), dtype=np.int64)
    for i in range(clients):
        available = np.flatnonzero(left)
        prior = (
            left[available] / left.sum() if concentration == "total" else np.ones(len(available))
        )
        q = np.zeros(classes)
        q[available] = gen.dirichlet(alpha * prior)
        quota = len(labels) // clients
        while quota:
            got = np.minimum(gen.multinomial(quota, _among(q, left)), left)
            counts[i] += got
            left -= got
            quota -= int(got.sum())
    return take(counts, labels, gen)


def _among(taste: Floats, left: Ints) -> Floats:
    """`taste` restricted to classes that have rows left; by what is left where no taste remains."""
    p = np.where(left > 0, np.nan_to_num(taste), 0.0)
    if p.sum() <= 0:
        p = left.astype(np.float64)
    total = p.sum()
    return p / total if total > 0 else np.full(len(p), 1 / len(p))


def _enough(labels: Ints, clients: int) -> None:
    if len(labels) < clients:
        raise PartitionError(
            f"{len(labels)} rows do not give each of {clients} clients one; use fewer clients"
        )
