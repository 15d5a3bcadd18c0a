"""A share of uniform rows, the rest from the dominant classes of the client's group (FedPAC)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedloom.data.partition.draw import Ints, apportion, rng, take, whole
from fedloom.data.partition.registry import partitions
from fedloom.errors import BadInput


@partitions
def dominant(
    uniform: float = 0.2,
    groups: int | str | Sequence[Sequence[int]] = 5,
    size: int = 600,
    sharing: bool = False,
    *,
    labels: Ints,
    classes: int,
    clients: int,
    seed: int,
) -> list[Ints]:
    """Client i has `size` rows: `uniform` of them over all classes, the rest dominant ones.

    Its dominant classes, in equal parts, are those of group i mod G. `groups` is the number of
    groups of consecutive classes, each starting with the last class of the one before (5 of 10
    classes: 012, 234, 456, 678, 890), or "emnist" (digits, upper case, lower case of 62 classes),
    or the class lists themselves.

    `sharing` deals a class again from its start when it runs out, as the published code does: 100
    clients of 600 rows of CIFAR-10 are not to be had otherwise.
    """
    whole(size=size)
    if not isinstance(uniform, int | float) or not 0 <= uniform <= 1:
        raise BadInput(f"dominant's uniform is a share between 0 and 1, not {uniform!r}")
    sets = dominant_classes(groups, classes)
    gen = rng(seed, "dominant")
    counts = np.stack(
        [
            apportion(size, _mixture(uniform, sets[i % len(sets)], classes), gen)
            for i in range(clients)
        ]
    )
    return take(counts, labels, gen, sharing=sharing)


def dominant_classes(
    groups: int | str | Sequence[Sequence[int]], classes: int
) -> list[tuple[int, ...]]:
    """The dominant classes of each group.

    >>> dominant_classes(5, 10)
    [(0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)]
    """
    if groups == "emnist":
        if classes != 62:
            raise BadInput(f"groups=emnist is for 62 classes (digits, A-Z, a-z), not {classes}")
        return [tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62))]
    if isinstance(groups, int):
        whole(groups=groups)
        width = min(classes, -(-classes // groups) + 1)
        starts = [g * classes // groups for g in range(groups)]
        return [tuple((start + j) % classes for j in range(width)) for start in starts]
    sets = [] if isinstance(groups, str) else [tuple(group) for group in groups]
    if not sets or not all(s and set(s) <= set(range(classes)) for s in sets):
        raise BadInput(
            f"dominant's groups are a number, emnist, or lists of classes 0..{classes - 1}, "
            f"not {groups!r}"
        )
    return sets


def _mixture(uniform: float, own: tuple[int, ...], classes: int) -> np.ndarray:
    share = np.full(classes, uniform / classes)
    share[list(own)] += (1 - uniform) / len(own)
    return share
