"""Ctrl-C and other signals that stop a command: treated alike, ignored or delayed for a while."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that stop a command as Ctrl-C does: what is done is saved first."""
STOPPED = 130
"""Exit status of a command that Ctrl-C stopped, as shells have it."""
NOTHING_DONE = "stopped; nothing was done yet; run the same command again"


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While a command imports, Ctrl-C ends the process with one sentence.

    A KeyboardInterrupt would be lost there: torch swallows what breaks its import of numpy, and
    fails later for lack of it.
    """
    # One that is ignored, or that somebody else handles, stays so.
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _handled([signal.SIGINT] if default else [], _end):
        yield


def _end(number: int, frame: Any) -> None:
    with suppress(OSError):  # nobody may be there to read it
        os.write(2, f"fedloom: {NOTHING_DONE}\n".encode())
    os._exit(STOPPED)


@contextmanager
def stops_as_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt."""
    # A signal that is ignored already stays ignored: `nohup` sets SIGHUP so.
    with _handled(
        [s for s in ENDS if signal.getsignal(s) == signal.SIG_DFL], signal.default_int_handler
    ):
        yield


@contextmanager
def ignoring_ctrl_c() -> Iterator[None]:
    """A child started meanwhile ignores Ctrl-C for good; to this process it comes after the block,
    except on Windows, where it is lost."""
    if sys.platform == "win32":
        with _handled([signal.SIGINT], signal.SIG_IGN):
            yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started inside, it would let the signal through again
    with _delaying([signal.SIGINT]):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # children have it too
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ignoring_stops() -> Iterator[None]:
    """Every signal that stops a command is ignored for a while."""
    with _handled([signal.SIGINT, *ENDS], signal.SIG_IGN):
        yield


@contextmanager
def delaying_stops() -> Iterator[None]:
    """A signal that stops a command does so after the block: what is in it is done as a whole."""
    with _delaying([signal.SIGINT, *ENDS]):
        yield


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Handlers that something inside puts in place, as Ray does, are gone after the block."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, *ENDS)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for s, handler in before.items():
                if handler is not None:  # one that Python did not install
                    signal.signal(s, handler)


@contextmanager
def _delaying(signals: Iterable[signal.Signals]) -> Iterator[None]:
    arrived: list[int] = []
    with _handled(signals, lambda number, frame: arrived.append(number)):
        yield
    for number in arrived[:1]:
        signal.raise_signal(number)


@contextmanager
def _handled(signals: Iterable[signal.Signals], handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals and may change their handlers
        return
    before = {s: signal.signal(s, handler) for s in signals}
    try:
        yield
    finally:
        for s, handler_before in before.items():
            signal.signal(s, handler_before)
