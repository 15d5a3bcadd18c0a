"""Child processes that are ended with everything they started themselves.

Only SIGKILL to this process itself leaves them running: nothing is left then that could end them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

from fedloom.errors import FedloomError, needs_extra
from fedloom.signals import ignoring_stops

with needs_extra("flower"):
    import psutil

FLWR = "1.41.0"
"""The release that deployments were measured with; pyproject.toml pins the same."""
MARK = "FEDLOOM_CHILD"
"""Environment variable by which a child's descendants are known, whatever session they are in."""
GRACE = 10.0
"""Seconds from a request to end to SIGKILL."""


class ChildFailed(FedloomError):
    """A process that ended or hung where it should have run; the message has its last lines."""


class Child:
    """A command in a session of its own, so that Ctrl-C reaches it only through `end`.

    Flower starts processes that start processes, some in new sessions, some of which outlive their
    parent. All of them inherit the child's mark in their environment, and `end` finds them by it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        log: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        """`log` takes standard output and errors, appended; None: they are this process's own."""
        self.name, self.command, self.log, self.folder = name, list(map(str, command)), log, folder
        self.mark = uuid.uuid4().hex
        # A child of a child carries both marks: whoever ends the outer one finds it.
        self._environment = {**environment, MARK: environment.get(MARK, "") + self.mark}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> Self:
        """Start it; `ready` tells when it can be used."""
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with nullcontext() if self.log is None else open(self.log, "ab") as out:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """Of the process itself."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Does the process itself run?"""
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        """The log since the last start."""
        if self.log is None or not self.log.exists():
            return ""
        with open(self.log, "rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        return "\n".join(self.output().splitlines()[-lines:])

    def processes(self) -> list[psutil.Process]:
        """It and all its descendants that run."""
        running = {p.pid: p for p in with_environment(MARK) if self.mark in p.info["environ"][MARK]}
        if self.alive and self.pid not in running:  # just started: its environment is not there yet
            running[self.pid] = psutil.Process(self.pid)
        return [running[pid] for pid in sorted(running)]

    def ready(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, while the process lives."""
        end = time.monotonic() + seconds
        while not condition():
            if not self.alive:
                raise ChildFailed(f"{self.name} ended with code {self.code}:\n{self.tail()}")
            if time.monotonic() > end:
                raise ChildFailed(f"{self.name} was not ready in {seconds:g} s:\n{self.tail()}")
            time.sleep(0.1)

    def wait(self, seconds: float | None = None) -> int:
        """Its exit code, once it ended by itself."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.name} did not end in {seconds:g} s:\n{self.tail()}") from None

    def kill(self) -> None:
        """SIGKILL to the process alone, as in a crash: its descendants are left to themselves."""
        if self._process is not None and self.alive:
            self._process.kill()
            self.wait()

    def restart(self, grace: float = GRACE) -> Self:
        """End what is left of it and start it again, with the same log."""
        self.end(grace)
        return self.start()

    def end(self, grace: float = GRACE) -> None:
        """See that it and all its descendants end: asked first, killed after `grace` seconds."""
        end_all([self], grace)

    def terminate(self) -> None:
        """Ask the process itself to end."""
        if self._process is not None:
            self._process.terminate()


def end_all(children: Iterable[Child], grace: float = GRACE) -> None:
    """End children side by side: the wait is that of the slowest, and no signal stops it."""
    children = list(children)
    with ignoring_stops():
        for child in children:
            child.terminate()
        _wait(lambda: not any(child.alive for child in children), grace)
        for child in children:
            _end_descendants(child)


def _end_descendants(child: Child) -> None:
    # SIGKILL is sent twice: a process that was started between the first search and its kills is
    # found by the second search.
    for stop in (psutil.Process.terminate, psutil.Process.kill, psutil.Process.kill):
        for process in child.processes():
            with suppress(psutil.NoSuchProcess):
                stop(process)
        if _wait(lambda: not child.processes(), 2.0):
            return


def end_with_parent(grace: float = GRACE) -> None:
    """From now on, end this process `grace` seconds after the one that started it has ended.

    Flower has a watch of its own, which raises SIGINT. Python handles that in the main thread, and
    not while it waits for other threads that try for ever to reach a SuperLink that is gone.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def with_environment(name: str) -> list[psutil.Process]:
    """Processes that have this environment variable; `info["environ"]` holds their environment.

    Only those are seen whose environment this user may read.
    """
    processes = psutil.process_iter(["environ"])
    return [process for process in processes if name in (process.info["environ"] or ())]


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return fulfilled


def flower_environment(home: Path) -> dict[str, str]:
    """What Flower's commands need: no reports, no downloads, and a home of their own."""
    scripts = str(Path(sys.executable).parent)  # Flower starts its own commands by name
    return {
        **os.environ,
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath))),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def free_ports(count: int) -> list[int]:
    """Ports of this machine's loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]  # all open at once, so that ports differ
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listens(host: str, port: int) -> bool:
    """Does somebody accept connections there?"""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
