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
    seed, cuda, cpu = seed_of(*key), _cuda_devices(), torch.default_generator
    # Not torch.random.fork_rng and torch.manual_seed, which small clients feel: they look for
    # devices at every call, and without a GPU the second formats and keeps a stack trace.
    before, before_cuda = cpu.get_state(), [torch.cuda.get_rng_state(i) for i in cuda]
    try:
        cpu.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield
    finally:
        cpu.set_state(before)
        for i, state in zip(cuda, before_cuda, strict=True):
            torch.cuda.set_rng_state(state, i)


class Stream:
    """Torch's default streams as a key seeds them, which can be left and taken up again.

    Only inside of a `rng_scope`: it does not bring back what was before.

    >>> with rng_scope("outside"):
    ...     stream = Stream("layers")
    ...     with stream:
    ...         a = torch.rand(1)
    ...     _ = torch.rand(5)
    ...     with stream:
    ...         b = torch.rand(1)
    >>> with rng_scope("layers"):
    ...     torch.equal(torch.cat([a, b]), torch.rand(2))
    True
    """

    def __init__(self, *key: Hashable) -> None:
        self._key = key
        self._left: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def __enter__(self) -> None:
        if self._left is None:
            seed = seed_of(*self._key)
            torch.default_generator.manual_seed(seed)
            if _cuda_devices():
                torch.cuda.manual_seed_all(seed)
            return
        cpu, cuda = self._left
        torch.default_generator.set_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    def __exit__(self, *error: object) -> None:
        cuda = torch.cuda.get_rng_state_all() if _cuda_devices() else []
        self._left = torch.default_generator.get_state(), cuda


def _cuda_devices() -> list[int]:
    """GPUs whose streams must be restored: none before CUDA is first used."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return list(range(torch.cuda.device_count())) if started else []
