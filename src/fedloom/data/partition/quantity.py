"""Quantity skew: what a partition gave a client, thinned out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedloom.data.partition.draw import Ints, rng, whole, wholes
from fedloom.data.partition.registry import modifiers
from fedloom.errors import PartitionError


@modifiers
def quantity(
    sizes: Sequence[int] = (300, 600, 1200), *, parts: list[Ints], seed: int
) -> list[Ints]:
    """Every client keeps a number of rows drawn from `sizes`, whatever its labels (FedPAC C.6).

    The partition before it must give each client the largest size: `dominant(size=1200)`.
    """
    wholes(sizes=sizes)
    gen = rng(seed, "quantity")
    drawn = gen.choice(np.array(sizes, dtype=np.int64), size=len(parts))
    for i, (rows, size) in enumerate(zip(parts, drawn, strict=True)):
        if len(rows) < size:
            raise PartitionError(
                f"client {i} is to keep {size} rows but has {len(rows)}; make the partition before "
                f"quantity give every client at least {max(sizes)}"
            )
    return [_some(rows, int(size), gen) for rows, size in zip(parts, drawn, strict=True)]


@modifiers
def scarce(size: int = 50, *, parts: list[Ints], seed: int) -> list[Ints]:
    """Every client keeps `size` rows at most (FedPAC C.9)."""
    whole(size=size)
    gen = rng(seed, "scarce")
    return [_some(rows, size, gen) for rows in parts]


def _some(rows: Ints, size: int, gen: np.random.Generator) -> Ints:
    return np.sort(gen.permutation(rows)[:size])
