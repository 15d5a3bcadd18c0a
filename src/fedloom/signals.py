"""Ctrl-C and its like: who hears them, and when."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that stop a command as Ctrl-C does: what is done is saved first."""


@contextmanager
def stops_as_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt."""
    # What is ignored stays ignored: nohup does so with the loss of the terminal.
    with _handled(
        [s for s in ENDS if signal.getsignal(s) == signal.SIG_DFL], signal.default_int_handler
    ):
        yield


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Ctrl-C does nothing for a while, and a child that is started then never hears it."""
    with _handled([signal.SIGINT], signal.SIG_IGN):
        yield


@contextmanager
def deaf_to_stops() -> Iterator[None]:
    """Nothing that stops a command is heard for a while."""
    with _handled([signal.SIGINT, *ENDS], signal.SIG_IGN):
        yield


@contextmanager
def _handled(signals: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears them, and may set signals
        return
    before = {s: signal.signal(s, handler) for s in signals}
    try:
        yield
    finally:
        for s, was in before.items():
            signal.signal(s, was)
