"""A block of classes for every client, and some rows of the others' (FedBR's observations)."""

from __future__ import annotations

import numpy as np

from fedloom.data.partition.draw import Ints, apportion, class_totals, rng, take
from fedloom.data.partition.registry import partitions
from fedloom.errors import BadInput, PartitionError


@partitions
def class_blocks(
    alpha: float = 0.0, *, labels: Ints, classes: int, clients: int, seed: int
) -> list[Ints]:
    """Client i has the i-th block of consecutive classes; a share `alpha` of every class goes to
    the other clients, in equal parts.

    FedBR's observations are of two clients: classes 0-4 and 5-9 (Figures 2, 3, 10-14); Figure 15
    has alpha from 0 to 0.5, where both hold the same. All rows go.
    """
    balanced = 1 - 1 / clients if clients > 1 else 1.0  # a single client has all rows anyway
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= balanced:
        raise BadInput(
            f"class_blocks' alpha goes from 0 (no class in common) to {balanced:g} (all clients of "
            f"{clients} alike), not {alpha!r}"
        )
    if clients > classes:
        raise PartitionError(f"{clients} clients need a class each, and there are {classes}")
    others = alpha / max(1, clients - 1)
    shares = np.full((clients, classes), others)
    for i, own in enumerate(np.array_split(np.arange(classes), clients)):
        shares[i, own] = 1 - alpha
    gen, totals = rng(seed, "class_blocks"), class_totals(labels, classes)
    columns = [apportion(int(totals[k]), shares[:, k], gen) for k in range(classes)]
    return take(np.stack(columns, axis=1), labels, gen)
