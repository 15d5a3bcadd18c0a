"""Memory that the system refuses is one sentence, wherever it is asked for."""

from __future__ import annotations

import errno
from collections.abc import Callable
from mmap import mmap

import pytest
import torch

from fedloom.core.hook_errors import naming_hooks
from fedloom.engines.worker import failure, rebuilt
from fedloom.errors import OutOfMemory, lacks_memory, naming_lack_of_memory

TOO_MUCH = 1 << 50
"""Bytes."""


def _tensor() -> object:
    return torch.empty(TOO_MUCH, dtype=torch.uint8)


def _bytes() -> object:
    return bytearray(TOO_MUCH)


def _mapping() -> object:
    return mmap(-1, TOO_MUCH)


@pytest.mark.parametrize("ask", [_tensor, _bytes, _mapping])
def test_refused_memory_is_one_sentence(ask: Callable[[], object]) -> None:
    with (
        pytest.raises(OutOfMemory, match="the run's main process is out of memory; give"),
        naming_lack_of_memory("the run's main process"),
        naming_hooks("at client 3, round 7"),
    ):
        ask()


def test_a_worker_says_so_too() -> None:
    try:
        _tensor()
    except RuntimeError as e:
        error = rebuilt(failure(e))
    assert isinstance(error, OutOfMemory)
    assert str(error).startswith("a worker process is out of memory; give")


@pytest.mark.parametrize(
    "other", [RuntimeError("shapes differ"), OSError(errno.ENOSPC, "full"), ValueError("memory")]
)
def test_other_errors_stay_what_they_are(other: Exception) -> None:
    assert not lacks_memory(other)
    with pytest.raises(type(other)), naming_lack_of_memory("it"):
        raise other
