"""Networks are counted while they are made, and stopped before they take a site's memory."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from fedloom.models import size
from fedloom.models.size import TooLarge, counted


def test_what_is_within_the_bound_is_made() -> None:
    with counted(4 * 3 + 3):
        within = nn.Linear(4, 3)
        nn.BatchNorm1d(3, affine=False, track_running_stats=False)  # has no numbers
    afterwards = nn.Linear(1000, 1000)  # nobody counts any more
    assert within.weight.shape == (3, 4)
    assert afterwards.weight.numel() == 10**6


def test_all_networks_count_together_and_their_buffers_too() -> None:
    match = "more than the 20 numbers this site permits"
    with pytest.raises(TooLarge, match=match), counted(20):  # noqa: PT012
        nn.Linear(4, 3)
        nn.BatchNorm1d(3)  # 2 * 3, 2 * 3 and 1


def test_nobody_passes_over_it() -> None:
    """A package may take every error of its own parts for something else."""
    with pytest.raises(TooLarge), counted(5), suppress(Exception):
        nn.Linear(4, 3)


def test_many_parts_without_numbers_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "MOST_MODULES", 10)
    with pytest.raises(TooLarge, match="more than 10 parts"), counted(10**9):
        nn.Sequential(*(nn.ReLU() for _ in range(10**5)))


def test_no_memory_is_needed_to_count() -> None:
    with pytest.raises(TooLarge), torch.device("meta"), counted(10**9):
        nn.Linear(10**7, 10**7)
