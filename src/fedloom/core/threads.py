"""How a process computes: on one thread, and with the memory that it freed before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

LEARNT_FROM = 2**25 - 2**16
"""Bytes of one piece of memory, just below the most that glibc learns from."""


def keep_freed_memory() -> None:
    """Have the next tensors take the memory of the last ones.

    glibc gives the system back what is freed above a limit, which it raises to twice the largest
    piece that was freed so far. Below it the outputs of every pass are new memory, whose pages take
    as long as a convolution. Other C libraries learn nothing from this.
    """
    torch.empty(LEARNT_FROM, dtype=torch.uint8)  # freed at once, and never touched


def on_one_thread() -> None:
    """For good: of a process that does nothing but compute."""
    torch.set_num_threads(1)
    keep_freed_memory()


@contextmanager
def one_thread() -> Iterator[None]:
    """The bytes of a sum depend on how many threads share it; a run always uses one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
