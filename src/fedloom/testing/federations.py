"""Small federations of handwritten digits, dealt by hand."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedloom.data import FederatedData, Partition, load
from fedloom.data.partition.assignment import ClientRows
from fedloom.data.partition.draw import Ints

Holding = tuple[tuple[int, ...], int]
"""The classes a client holds, and its number of training rows."""


@cache
def digits(*holdings: Holding, held_out: int = 6) -> FederatedData:
    """For each client its classes, dealt in turn, and its number of training rows; beside them
    `held_out` rows each for validation and test."""
    source = load("digits")
    y = np.asarray(source.y)
    unused = {k: list(np.flatnonzero(y == k)) for k in range(source.classes)}

    def deal(classes: tuple[int, ...], n: int) -> Ints:
        return np.array([unused[classes[i % len(classes)]].pop() for i in range(n)], dtype=np.int64)

    rows = tuple(
        ClientRows(*(deal(classes, k) for k in (n, held_out, held_out))) for classes, n in holdings
    )
    return FederatedData(source, Partition(rows, source=source.fingerprint))


def common_federation() -> FederatedData:
    """Four clients of four or five classes each, and a newcomer (id 4)."""
    return digits(
        ((0, 1, 2, 3), 20),
        ((2, 3, 4, 5), 16),
        ((4, 5, 6, 7), 25),
        ((6, 7, 8, 9, 0), 12),
        ((1, 5, 9), 15),
    )


def one_sample_federation() -> FederatedData:
    """One of three clients has a single training row."""
    return digits(((3,), 1), ((0, 1, 2, 3), 17), ((4, 5, 6), 9), held_out=3)


def lacking_federation() -> FederatedData:
    """Nobody holds class 9, and two of three clients hold a single class."""
    return digits(((0,), 12), ((1,), 9), ((2, 3, 4, 5, 6, 7, 8), 14), held_out=3)


def half_federation() -> FederatedData:
    """Four clients, of which two are asked a round; one has a single row."""
    return digits(((0, 1, 2), 13), ((3,), 1), ((4, 5, 6), 9), ((7, 8, 9), 11), held_out=3)
