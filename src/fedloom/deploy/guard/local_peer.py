"""Which process of this machine is at the other end of a connection.

Linux lists every TCP socket of the machine with the user who owns it. A connection from another
machine has no second end in that list; one through a proxy has the proxy's.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

ESTABLISHED = "01"
REMEMBERED = 1000
"""Sockets whose owner was looked up; each belongs to one connection."""
Address = tuple[str, int]


class LocalPeers:
    """Knows processes of this user that were started with one value of an environment variable."""

    def __init__(self, variable: str, value: str, proc: Path = Path("/proc")) -> None:
        """`variable` marks the processes that `fedloom deploy` starts for this project."""
        self._entry = f"{variable}={value}".encode()
        self._proc = proc
        self._ours: OrderedDict[str, bool] = OrderedDict()

    def refuses(self, client: Address, server: Address) -> str | None:
        """Why the process that opened this connection may not submit runs; None: it may."""
        socket = self._socket(client, server)
        if socket is None:
            return "only the server's own machine may do this"
        uid, inode = socket
        if uid != os.getuid():
            return "only the user who runs the SuperLink may do this"
        if inode not in self._ours:
            self._ours[inode] = self._holder_is_ours(inode)
            if len(self._ours) > REMEMBERED:
                self._ours.popitem(last=False)
        if not self._ours[inode]:
            return "only commands of `fedloom deploy` for this project may do this"
        return None

    def _socket(self, client: Address, server: Address) -> tuple[int, str] | None:
        """Owner and inode of the socket at the client's end."""
        wanted = _plain(client), _plain(server)
        port = f":{client[1]:04X}"
        for table in ("tcp", "tcp6"):
            try:
                lines = (self._proc / "net" / table).read_text().splitlines()[1:]
            except OSError:
                continue
            for line in lines:
                fields = line.split()
                if fields[3] != ESTABLISHED or not fields[1].endswith(port):
                    continue
                if (_parsed(fields[1]), _parsed(fields[2])) == wanted:
                    return int(fields[7]), fields[9]
        return None

    def _holder_is_ours(self, inode: str) -> bool:
        """Does a process of this user that carries the mark hold the socket?"""
        link, own = f"socket:[{inode}]", os.getuid()
        for process in self._proc.glob("[0-9]*"):
            try:
                if process.stat().st_uid != own:
                    continue
                if self._entry not in (process / "environ").read_bytes().split(b"\0"):
                    continue
                handles = list((process / "fd").iterdir())
            except OSError:  # it ended, or hides itself
                continue
            if any(_target(handle) == link for handle in handles):
                return True
        return False


def _target(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except OSError:
        return ""


def _plain(address: Address) -> tuple[IPv4Address | IPv6Address, int]:
    return _unmapped(ip_address(address[0].partition("%")[0])), address[1]


def _parsed(written: str) -> tuple[IPv4Address | IPv6Address, int]:
    """From `0100007F:1F90`: words of four bytes, each in the machine's order."""
    digits, port = written.split(":")
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    return _unmapped(ip_address(b"".join(words))), int(port, 16)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
