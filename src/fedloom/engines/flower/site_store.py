"""What a site keeps, durable on its own disk: the newest state and the one the server counts on.

A site may finish a round that the server never counts: its answer is lost or late, or the server
goes back to a checkpoint. So a new state never replaces the one it came from. Files are named after
a number and their digest, and the server's message names the one to go on from by its digest.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from fedloom.core.digest import digest
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack
from fedloom.engines.lost_state import LostState
from fedloom.files import sync_folder

_STATE = re.compile(r"(\d+)-([0-9a-f]{64})\.state")
_DAY = 86400.0


class SiteStore:
    """The states of one client in one run, numbered as they are made.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch:
    ...     store = SiteStore(Path(scratch))
    ...     first = store.put({"model": {"w": torch.ones(1)}}, None)
    ...     second = store.put({"model": {"w": torch.zeros(1)}}, first)
    ...     third = store.put({"model": {"w": torch.ones(2)}}, second)
    ...     store.names() == {second, third}, store.get(second)
    (True, {'model': {'w': tensor([0.])}})
    """

    def __init__(self, folder: Path, earlier: int = 0) -> None:
        """So many `earlier` states stay too, for a server that is taken back some rounds."""
        self.folder, self.earlier = folder, earlier

    def names(self) -> set[str]:
        """Digests of the stored states."""
        return set(self._numbers())

    def get(self, name: str | None) -> State | None:
        """A state by its digest; None is a new client's, the empty name that of nothing kept."""
        if not name:
            return None if name is None else {}
        number = self._numbers().get(name)
        if number is None:
            raise LostState(
                f"the state {name[:12]} that the server counts on is not at the site; restore it,"
                " or let the site start afresh (lost-state = 'restart')"
            )
        state = unpack(self._file(number, name).read_bytes())
        if digest(state) != name:
            raise LostState(f"the state {name[:12]} was altered at the site; restore it")
        return state

    def put(self, state: State, came_from: str | None) -> str:
        """Keep a state and the one it came from; returns its digest.

        Of the others only those are removed that are older than the one it came from: a process
        that outlived its node must not remove states that were made, and counted, since.
        """
        name, stored = digest(state) if any(state.values()) else "", self._numbers()
        if name and name not in stored:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._file(max(stored.values(), default=0) + 1, name), pack(state))
        for old, number in stored.items():
            if old != name and came_from in stored and number < stored[came_from] - self.earlier:
                self._file(number, old).unlink(missing_ok=True)
        return name

    def _numbers(self) -> dict[str, int]:
        """Digest -> number of every stored state."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        matches = (_STATE.fullmatch(file.name) for file in files)
        return {match[2]: int(match[1]) for match in matches if match}

    def _file(self, number: int, name: str) -> Path:
        return self.folder / f"{number:08d}-{name}.state"

    def _write(self, file: Path, data: bytes) -> None:
        # Not under one fixed name: a process that outlived its node may write at the same time.
        writing = file.with_suffix(f".writing-{os.getpid()}")
        with open(writing, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(writing, file)
        sync_folder(self.folder)
        for leftover in self.folder.glob("*.writing-*"):  # of processes that were killed
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _DAY:
                    leftover.unlink()
