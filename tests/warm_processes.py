"""Worker processes of tests begin with torch and fedloom imported.

The pool of workers and tuning start their processes by `spawn`: each imports torch anew, which
takes longer than most of the tests. Here they are forked from a process that has imported all of it
and done nothing else. Tests of the command line and of scripts start processes as users do.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess
from typing import Any

IMPORTED = ["fedloom.engines.pool", "fedloom.tuning.tune", "fedloom.testing"]


class WarmProcess(ForkServerProcess):
    """Has the environment of the process that starts it, as if it were spawned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class WarmContext(ForkServerContext):
    """In place of `spawn`."""

    Process = WarmProcess


def install() -> None:
    """From now on, in this process."""
    if not sys.platform.startswith("linux"):
        return
    multiprocessing.set_forkserver_preload(IMPORTED)
    context_of, warm = multiprocessing.get_context, WarmContext()

    def get_context(method: str | None = None) -> BaseContext:
        return warm if method == "spawn" else context_of(method)

    multiprocessing.get_context = get_context  # type: ignore[assignment]
