"""Imports that no garbage is looked for in."""

from __future__ import annotations

import gc

import pytest

from fedloom.collector import paused


def imported_nothing(inside: list[bool]) -> None:
    with paused():
        inside.append(gc.isenabled())
        raise ImportError


def test_a_pause_ends_with_the_import_also_if_that_fails() -> None:
    inside: list[bool] = []
    with pytest.raises(ImportError):
        imported_nothing(inside)
    assert inside == [False]
    assert gc.isenabled()


def test_a_pause_leaves_a_collector_off_that_was_off() -> None:
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
