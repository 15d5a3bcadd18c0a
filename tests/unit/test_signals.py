"""Signals that are held back for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fedloom.signals import ending_at_once, ignoring_ctrl_c

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its signals cannot be held back")
BLOCKED = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """Tests that run in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def starting(seen: list[str]) -> None:
    with ignoring_ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)
        done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, check=True)
        seen.append(done.stdout.decode().strip())


def test_ctrl_c_while_a_child_starts_comes_afterwards_and_the_child_has_none() -> None:
    """It was lost: a comparison whose processes just started went on as if nothing had been."""
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        starting(seen)
    assert seen == ["True"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_somebody_ignores_stays_ignored_while_something_is_imported() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ending_at_once():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
