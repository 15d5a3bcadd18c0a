"""Imports without the garbage collector, which looks through what they make for nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.signals import ending_at_once


@contextmanager
def importing() -> Iterator[None]:
    """Import what a command needs before it does anything: without the garbage collector, and
    Ctrl-C ends it at once."""
    with uncollected(), ending_at_once():
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """Import what stays until the process ends: no garbage is looked for in it, now or later.

    Torch's modules are half a million objects. Looking through them while they are made, once more
    during the first round, and when the process ends, takes longer than all else a short run does.

    Only for commands, whose process is ours: garbage that is there already is never freed.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def paused() -> Iterator[None]:
    """Import one large package in the middle of other work: in its objects no garbage is looked for
    while they are made, and afterwards as in all others."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
