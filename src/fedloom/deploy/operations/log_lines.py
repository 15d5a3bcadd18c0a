"""What a command and all its processes print: lines with the time in UTC, in files that rotate."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import BadInput
from fedloom.files import open_to_append

BYTES = 10_000_000
"""Of one file; then it becomes FILE.1, that one FILE.2, and so on."""
KEPT = 5
PRIVATE = 0o600
"""For its owner only: a site's log has errors in their own words, which may quote a value."""
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST = 10_000


@contextmanager
def logged(file: Path | None) -> Iterator[None]:
    """Send standard output and errors of this process, and of all it starts, to a file, while the
    block runs; None: leave them as they are."""
    if file is None:
        yield
        return
    log = RotatingLog(file)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    end, begin = os.pipe()
    os.dup2(begin, 1)
    os.dup2(begin, 2)
    os.close(begin)
    pump = threading.Thread(target=_pump, args=(end, log), daemon=True)
    pump.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for handle, place in zip(before, (1, 2), strict=True):
            os.dup2(handle, place)
            os.close(handle)
        pump.join(timeout=2.0)  # a process that outlived its end may hold the pipe open


def _pump(end: int, log: RotatingLog) -> None:
    with open(end, "rb") as lines:
        while line := lines.readline(_LONGEST):
            log.write(line)


class RotatingLog:
    """A file of lines that never grows beyond a size, and some older ones."""

    def __init__(self, file: Path, most: int = BYTES, kept: int = KEPT) -> None:
        self.file, self.most, self.kept = file, most, kept
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._out = open_to_append(file, PRIVATE)
        except OSError as e:
            raise BadInput(f"cannot write the log {file} ({e.strerror}); name another") from None
        self._lost = 0

    def write(self, line: bytes) -> None:
        """One line: time, then what was printed, without colours and control characters. A full
        disk costs lines, and not the command; the next one that fits says how many."""
        text = _CONTROL.sub(b"?", _COLOURS.sub(b"", line.rstrip(b"\r\n")))
        if self._lost:
            text = f"({self._lost} lines could not be written) ".encode() + text
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()).encode()
        whole = stamp + text + b"\n"
        try:
            if self._out.tell() + len(text) > self.most:
                self._rotate()
            # Past the buffer, which would keep what the disk refuses and try it again and again.
            written = os.write(self._out.fileno(), whole)
        except OSError:
            written = 0
        self._lost = 0 if written == len(whole) else self._lost + 1

    def _rotate(self) -> None:
        self._out.close()
        for number in range(self.kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                os.replace(older, self._numbered(number + 1))
        os.replace(self.file, self._numbered(1))
        self._out = open_to_append(self.file, PRIVATE)

    def _numbered(self, number: int) -> Path:
        return self.file.with_name(f"{self.file.name}.{number}")
