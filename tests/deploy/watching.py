"""Which processes run, and where they listen."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil

from fedloom.deploy.processes.children import with_environment


def marked(name: str, value: str) -> list[psutil.Process]:
    """Processes whose environment has this entry: whoever was started with it, and descendants."""
    return [p for p in with_environment(name) if p.info["environ"][name] == value]


def runs(process: psutil.Process) -> bool:
    """Not so one that ended and waits for its parent to notice."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def command(process: psutil.Process) -> str:
    """The command line; empty where the process ended meanwhile."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def listening(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    """Addresses and ports on which these processes accept connections."""
    addresses = set()
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    addresses.add((connection.laddr.ip, connection.laddr.port))
    return addresses
