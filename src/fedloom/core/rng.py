"""Randomness without a global seed: every draw has a key (seed, round, client, purpose)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import torch


def seed_of(*key: Hashable) -> int:
    """A 56-bit seed from any key of plain values; the same on every machine and process."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def generator(*key: Hashable) -> torch.Generator:
    """A torch generator (CPU) for everything drawn by hand.

    >>> a, b = (torch.rand(1, generator=generator(0, "batches")) for _ in range(2))
    >>> bool(a == b)
    True
    """
    return torch.Generator().manual_seed(seed_of(*key))


@contextmanager
def rng_scope(*key: Hashable) -> Iterator[None]:
    """Seeds torch's default streams inside and restores them after.

    For what cannot be handed a generator: initialisers, dropout, sampling layers.
    """
    seed, cuda = seed_of(*key), _cuda_devices()
    with torch.random.fork_rng(devices=cuda):
        # Not torch.manual_seed: without a GPU it formats and keeps a stack trace at every call.
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield


def _cuda_devices() -> list[int]:
    """GPUs whose streams must be restored: none before CUDA is first used."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []
