"""A network of its own for what reaches out: Ray when it starts; Flower's simulation starts Ray.

Tests run a script with `[*namespace(), sys.executable, script]`; the script calls `raise_loopback`.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import sys

import pytest


def namespace() -> list[str]:
    """The command that gives a process a network of its own; the test is skipped without."""
    for command in (["unshare", "-n"], ["unshare", "-r", "-n"]):
        try:
            done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("Ray starts only in a network namespace, and there is no `unshare`")
        if done.returncode == 0:
            return command
    pytest.skip(f"Ray starts only in a network namespace: {done.stderr.strip()}")


def raise_loopback() -> None:
    """`ip link set lo up`, where there is no `ip`; ends a script that has the machine's network."""
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("run this under `unshare -n`: Ray reaches out")
    set_flags, up = 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, set_flags, struct.pack("16sh14x", b"lo", up))
