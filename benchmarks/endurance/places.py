"""Where a soak puts its run: a small disk of its own that can be full or read-only, and a clock."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

CLOCK = "FEDLOOM_CLOCK"
JUMPS = (86400, -86400, 3600 * 24 * 365 * 20, -3600 * 24 * 365 * 30, 1, 0)
"""Seconds by which a clock may be wrong."""
BALLAST = "ballast"


class Disk:
    """A folder; with `own`, a small file system in memory of its own (needs root)."""

    def __init__(self, path: Path, own: bool) -> None:
        self.path, self.own = path, own

    @classmethod
    @contextmanager
    def mounted(cls, path: Path, megabytes: int) -> Iterator[Disk]:
        """Unmounted at the end of the block; what lies there has to be kept, so it is copied to and
        from a folder beside it."""
        path.mkdir(parents=True, exist_ok=True)
        kept, options = path.with_name("kept"), f"size={megabytes}m"
        if not kept.exists() and not os.path.ismount(path) and any(path.iterdir()):
            subprocess.run(["cp", "-a", path, kept], check=True)
        there = os.path.ismount(path)  # of a soak that was killed
        own = there or _did("mount", "-t", "tmpfs", "-o", options, "tmpfs", path)
        disk = cls(path, own)
        try:
            if own and kept.exists() and not there:
                subprocess.run(["cp", "-a", f"{kept}/.", path], check=True)
            yield disk
        finally:
            if own:
                disk.writable()
                subprocess.run(["rm", "-rf", kept], check=True)
                subprocess.run(["cp", "-a", path, kept], check=True)
                subprocess.run(["umount", path], check=True)

    def fill(self) -> None:
        """Take what is left, to the last byte."""
        handle = os.open(self.path / BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        os.write(handle, b"\0" * size)
        finally:
            os.close(handle)

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.path / BALLAST).unlink(missing_ok=True)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Of a file system on which nothing is open."""
        subprocess.run(["mount", "-o", "remount,ro", self.path], check=True)
        try:
            yield
        finally:
            self.writable()

    def writable(self) -> None:
        """Again."""
        subprocess.run(["mount", "-o", "remount,rw", self.path], check=True)


@contextmanager
def protected(*folders: Path) -> Iterator[None]:
    """Folders in which nobody may make, rename or remove a file; open files can be written."""
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


def again_with_a_clock(folder: Path, before: Sequence[str] = ()) -> None:
    """Replace this process by one whose clock can jump, where there is a compiler; `before` are
    the words of a command that starts others."""
    made = _library(folder)
    if CLOCK in os.environ or made is None:
        return
    os.environ |= {CLOCK: str(_clock_file(folder / "clock")), "LD_PRELOAD": str(made)}
    os.environ.setdefault("FEDLOOM_CACHE", str(folder / "cache"))
    words = [*before, sys.executable, *sys.argv]
    os.execvp(words[0], words)


def _library(folder: Path) -> Path | None:
    """The clock that jumps, compiled; None where there is no compiler."""
    made = folder / "clock.so"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("clock.c")
    return made if _did("cc", "-O2", "-shared", "-fPIC", "-o", made, source) else None


def set_clock(seconds: int) -> None:
    """Make the clock of all processes wrong by so much."""
    with open(os.environ[CLOCK], "r+b") as file:
        file.write(struct.pack("q", seconds))


def _clock_file(path: Path) -> Path:
    """For `set_clock`; right at first."""
    path.write_bytes(struct.pack("q", 0))
    return path


def _did(*words: str | Path) -> bool:
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
