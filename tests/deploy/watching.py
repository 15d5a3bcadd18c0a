"""Who runs and who listens, from /proc."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"


def with_environment(name: str, value: str) -> set[int]:
    """Processes whose environment has this entry: all descendants of whoever was given it."""
    wanted = f"{name}={value}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses and ports on which these processes accept connections."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(handle))
    found = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in inodes:
                found.add(_address(fields[1]))
    return found


def _address(written: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1, 8080: the kernel writes words in the machine's order."""
    host, port = written.split(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    packed = b"".join(struct.pack("=I", word) for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
