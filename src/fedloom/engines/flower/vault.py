"""What a site keeps, durable on its own disk: the newest state and the one the server counts on.

A site may finish a round that the server never counts: its answer is lost or late, or the server
goes back to a checkpoint. So a new state never replaces the one it came from. Files are named after
their digest, and the server's message names the one to go on from.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedloom.core.digest import digest
from fedloom.core.tree import State
from fedloom.core.wire import pack, unpack
from fedloom.errors import FedloomError
from fedloom.runs.folder import sync_folder

_SUFFIX = ".state"


class LostState(FedloomError):
    """The server counts on a state that is not here."""


class Vault:
    """The states of one client in one run.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as scratch:
    ...     vault = Vault(Path(scratch))
    ...     first = vault.put({"model": {"w": torch.ones(1)}}, None)
    ...     second = vault.put({"model": {"w": torch.zeros(1)}}, first)
    ...     third = vault.put({}, second)
    ...     sorted(vault.names()) == sorted([second]), vault.get(second)
    (True, {'model': {'w': tensor([0.])}})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found = self.names()

    def names(self) -> set[str]:
        """Digests of the states that are here."""
        return {file.stem for file in self.folder.glob(f"*{_SUFFIX}")}

    def get(self, name: str | None) -> State | None:
        """A state by its digest; None is a new client's, the empty name that of nothing kept."""
        if not name:
            return None if name is None else {}
        try:
            state = unpack(self._file(name).read_bytes())
        except FileNotFoundError:
            raise LostState(
                f"the state {name[:12]} that the server counts on is not in {self.folder}; restore"
                " it, or let the site start afresh (lost-state = 'restart')"
            ) from None
        if digest(state) != name:
            raise LostState(f"{self._file(name)} was altered: its content is not what it is named")
        return state

    def put(self, state: State, came_from: str | None) -> str:
        """Keep a state and the one it came from; returns its digest.

        Of the others only those are removed that were here before: a process that outlived its
        node must not remove what was made since.
        """
        name = digest(state) if any(state.values()) else ""
        if name:
            self.folder.mkdir(parents=True, exist_ok=True)
            writing = self._file(name).with_suffix(f".writing-{os.getpid()}")
            with open(writing, "wb") as file:
                file.write(pack(state))
                file.flush()
                os.fsync(file.fileno())
            os.replace(writing, self._file(name))
            sync_folder(self.folder)
        for old in self._found - {name, came_from}:
            self._file(old).unlink(missing_ok=True)
        self._found = self.names()
        return name

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"
