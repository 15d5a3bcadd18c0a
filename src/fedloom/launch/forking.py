"""Processes that begin with everything imported.

On Linux they are forked from one process that did nothing but import fedloom, while the main
process imported and read data. Elsewhere a fork is not safe, so that every process imports for
itself.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path

from fedloom.signals import delaying_stops, ignoring_ctrl_c

AT_ONCE = sys.platform == "linux"
"""Processes begin within milliseconds, once the one that they are forked from has imported."""
PRELOADED = "fedloom.launch.preloaded"


def possible() -> bool:
    """Can other processes read the program that this one runs? They cannot where it came from
    standard input. A prompt or a notebook has no file, and they need none."""
    program = getattr(sys.modules["__main__"], "__file__", None)
    return program is None or Path(program).exists()


def begin() -> None:
    """Start to import, in the background: called early it is done when processes are wanted.

    Ends a process that is one of these, and has come here because it reads a script which starts
    processes wherever it is read: whoever waits for it is told what to do.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)
    if AT_ONCE and possible():
        multiprocessing.set_forkserver_preload([PRELOADED])
        # A stop in between would lose the process, which leaves Ctrl-C to this one.
        with delaying_stops(), ignoring_ctrl_c():
            forkserver.ensure_running()


def context() -> BaseContext:
    """Of processes that compute."""
    begin()
    return multiprocessing.get_context("forkserver" if AT_ONCE else "spawn")


def take_environment(environment: Mapping[str, str]) -> None:
    """That of the main process now; a forked process has the one from when forking began."""
    os.environ.clear()
    os.environ.update(environment)
