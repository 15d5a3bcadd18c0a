"""`fedloom` as processes that start at once: forked from one that has imported all of it.

A soak starts its command hundreds of times, and importing torch takes longer than the rounds in
between. Workers of the pool are forked in the same way, from a process of their own. Whatever a
process does after its imports is what it does for a user.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

CAPABILITIES_3 = 0x20080522
LIMIT_MEMORY = signal.SIGUSR1
"""Tells a command, a worker of the pool, or an actor of Ray (`at_start/sitecustomize.py`) to go on
with little memory."""
LEFT, PIECE = 1 << 20, 1 << 13
"""Bytes that a process with little memory has, and the most that it has in one place."""


class Hold:
    """Lets commands do so many rounds and no more until `let_go`, however fast they are: trouble
    that is still to come must find the run at work. It is memory that is shared with them."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._holds = mmap.mmap(-1, 1)
        self.again()

    def again(self) -> None:
        """From now on."""
        self._holds[0] = True

    def let_go(self) -> None:
        """Until `again`."""
        self._holds[0] = False

    def bind(self) -> None:
        """In a command's process."""
        from fedloom.runs.runner import Runner

        step = Runner._step

        def step_when_let(runner: Runner, plan: Any) -> None:
            while self._holds[0] and runner.done >= self.rounds:
                time.sleep(0.002)
            step(runner, plan)

        Runner._step = step_when_let  # type: ignore[method-assign]


class Command:
    """A `fedloom ...` that runs, or has run, in a session of its own."""

    def __init__(self, words: Sequence[str | Path], log: Path, hold: Hold | None = None) -> None:
        self.words, self.log, self.hold = list(map(str, words)), log, hold
        self.code: int | None = None
        """Negative: the signal that ended it."""
        log.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            self._perform()
        self.process = psutil.Process(self.pid)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it still runs after so many seconds."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.code

    def signal(self, number: int, group: bool = False) -> None:
        """To it alone, or to all of its session, as a terminal does."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.002)

    def said(self) -> str:
        """Standard output and errors."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _perform(self) -> None:
        code = 1
        try:
            os.setsid()
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for handle in (1, 2):
                os.dup2(out, handle)
            os.close(out)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(LIMIT_MEMORY, limit_memory)
            _drop_privileges()
            if self.hold is not None:
                self.hold.bind()
            sys.argv = ["fedloom", *self.words]
            from fedloom.cli import main

            main()
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                util._exit_function()  # type: ignore[attr-defined]  # joins or ends workers
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _drop_privileges() -> None:
    """Root minds a file's permissions as anybody does."""
    if os.geteuid() == 0:
        head = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
        ctypes.CDLL(None).capset(head, (ctypes.c_uint32 * 6)())


def limit_memory(*_: object) -> None:
    """No more than there is, and of what was freed before hardly anything: a process that has
    imported torch could go on with that for long."""
    now = psutil.Process().memory_info().vms
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    left = [libc.malloc(PIECE) for _ in range(2 * LEFT // PIECE)]
    resource.setrlimit(resource.RLIMIT_AS, (now // 2, resource.RLIM_INFINITY))
    for size in (1 << 20, 1 << 16, 1 << 12, 1 << 9):
        while libc.malloc(size):
            pass
    for piece in left[::2]:  # no two beside each other, which would be one
        libc.free(ctypes.c_void_p(piece))


class _WarmProcess(ForkServerProcess):
    """Has the environment of the process that starts it, as if it were spawned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        signal.signal(LIMIT_MEMORY, limit_memory)
        super().run()


class _WarmContext(ForkServerContext):
    Process = _WarmProcess


def warm_up(engine: str) -> None:
    """Import everything, here and in the process that workers are forked from.

    Nothing is computed here: torch would start threads, and a fork has no use for their locks.
    """
    names = ["sklearn.datasets", "fedloom.cli", "fedloom.launch.start", "fedloom.runs.experiment"]
    names += ["fedloom.engines.pool", *(["ray", "fedloom.engines.ray"] if engine == "ray" else [])]
    for name in names:
        import_module(name)
    if engine != "pool":
        return
    multiprocessing.set_forkserver_preload(["fedloom.engines.pool", "fedloom.testing"])
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server.ensure_running()
    server.ensure_running = lambda: None  # it runs, though it is no child of the commands
    context_of, warm = multiprocessing.get_context, _WarmContext()
    multiprocessing.get_context = (  # type: ignore[assignment]
        lambda method=None: warm if method == "spawn" else context_of(method)
    )
