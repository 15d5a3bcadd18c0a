"""A log that can only grow: every line holds the sha256 of the line before it.

Whoever changes, removes or inserts a line has to rewrite all that follow, and the last digest,
which `fedloom audit verify` prints, is then another one: note it down elsewhere from time to time.
Lines cut off at the end can be seen by that digest alone.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedloom.errors import FedloomError
from fedloom.files import jsonable, naming_disk

if sys.platform != "win32":  # where two processes must not write at once
    import fcntl

FIRST = "0" * 64
"""Stands for the line before the first one."""
_OWN = ("at", "event", "previous")
_BLOCK = 8192


class AuditError(FedloomError):
    """A log that was changed, or is no log."""


@dataclass(frozen=True)
class Verified:
    """A log whose chain is whole."""

    lines: int
    last: str
    """sha256 of the last line."""


class AuditLog:
    """Appends events to a file; several processes may do so at once.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch:
    ...     log = AuditLog(Path(scratch) / "audit.jsonl")
    ...     log.append("received", round=1)
    ...     log.append("sent", round=1, bytes=1200)
    ...     [line["event"] for line in log.lines()], verify(log.path).lines
    (['received', 'sent'], 2)
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, **fields: Any) -> None:
        """Add one line; it is on the disk when this returns."""
        if taken := [key for key in _OWN if key in fields]:
            raise ValueError(f"{taken[0]} is set by the log itself")
        with naming_disk(self.path):
            self._append(event, fields)

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(self.path, flags, 0o600)
        try:
            with _locked(handle):
                last, torn = _last_line(handle)
                at = datetime.now(UTC).isoformat(timespec="milliseconds")
                line = {"at": at, "event": event, **fields, "previous": _digest(last)}
                text = json.dumps(jsonable(line), allow_nan=False)
                _write_whole(handle, (b"\n" if torn else b"") + text.encode() + b"\n")
                os.fsync(handle)
        finally:
            os.close(handle)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What was written, in order; an absent file has no lines. Not verified."""
        if self.path.exists():
            for line in self.path.read_bytes().splitlines():
                yield json.loads(line)


def verify(path: Path) -> Verified:
    """Raises with the first line that is not as it was written."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise AuditError(f"cannot read the audit log {path} ({e.strerror})") from None
    before, count = b"", 0
    for count, line in enumerate(data.split(b"\n")[:-1], start=1):
        if fault := _fault(line, before):
            raise AuditError(f"{path}, line {count}: {fault}; what follows it proves nothing")
        before = line
    if data and not data.endswith(b"\n"):
        raise AuditError(f"{path}, line {count + 1}: it is incomplete, its writer was interrupted")
    return Verified(count, _digest(before))


def _fault(line: bytes, before: bytes) -> str:
    try:
        written = json.loads(line)
    except ValueError:
        return "it is no JSON"
    if not isinstance(written, dict) or not all(isinstance(written.get(k), str) for k in _OWN):
        return f"it lacks one of {', '.join(_OWN)}"
    if written["previous"] != _digest(before):
        return "it does not follow the line before it: one of them was changed, removed or inserted"
    return ""


def _digest(line: bytes) -> str:
    return sha256(line).hexdigest() if line else FIRST


def _write_whole(handle: int, data: bytes) -> None:
    """A full disk takes a part of a line without an error, and would break the chain for good."""
    end = os.lseek(handle, 0, os.SEEK_END)
    if os.write(handle, data) != len(data):
        os.ftruncate(handle, end)
        raise OSError(errno.ENOSPC, "the disk has no room for a line of the audit log")


def _last_line(handle: int) -> tuple[bytes, bool]:
    """The last line without its end, and whether that end is missing."""
    position, tail = os.lseek(handle, 0, os.SEEK_END), b""
    while position and tail.rstrip(b"\n").count(b"\n") == 0:
        size = min(_BLOCK, position)
        position -= size
        os.lseek(handle, position, os.SEEK_SET)
        tail = os.read(handle, size) + tail
    return tail.rstrip(b"\n").rpartition(b"\n")[2], bool(tail) and not tail.endswith(b"\n")


@contextmanager
def _locked(handle: int) -> Iterator[None]:
    if sys.platform != "win32":
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_UN)
