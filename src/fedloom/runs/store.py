"""Clients' states: in memory up to a budget, beyond it in one file on the disk."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from fedloom.core.tree import State, nbytes, with_own_memory
from fedloom.core.wire import pack, unpack
from fedloom.errors import CheckpointError

BUDGET = 1 << 30
"""Bytes of clients' states held in memory, where nothing else is said."""
TENSOR_BYTES = 700
"""What a small tensor takes in memory beside its data (measured: torch 2, CPython 3.11)."""
_HEAD = struct.Struct("<qq")


def packed(state: State, owner: str) -> bytes:
    """`pack`, with an error that names whose state it was."""
    try:
        return pack(state)
    except (KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot save the state of {owner}: safetensors does not take it"
            f" ({type(error).__name__}: {error})"
        ) from error


def record(cid: int, data: bytes) -> bytes:
    """A client's packed state among others in one file: id and size, 8 bytes each, then the data.

    A file for each of 100,000 clients would cost more than what is in it.
    """
    return _HEAD.pack(cid, len(data)) + data


def records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Every (id, packed state) of a file, one at a time; ValueError where it was altered."""
    left = os.fstat(file.fileno()).st_size
    while left:
        if left < _HEAD.size:
            raise ValueError(f"the last {left} bytes are no state")
        cid, size = _HEAD.unpack(file.read(_HEAD.size))
        left -= _HEAD.size + size
        if cid < 0 or size < 0 or left < 0:
            raise ValueError(f"client {cid} with {size} bytes cannot be")
        yield cid, file.read(size)


class ClientStates(MutableMapping[int, State]):
    """Id -> what that client keeps. A stored state is never changed, only replaced.

    Half of the budget is for states that count, half for those of the round under way (`draft`).
    What exceeds it goes to disk, the least recently written first; reading brings nothing back
    into memory, because a client that is read is trained and written next, or is one of all in
    an evaluation.

    >>> import torch
    >>> states = ClientStates(budget=0)
    >>> draft = states.draft()
    >>> draft[7] = {"model": {"w": torch.ones(2)}}
    >>> states.accept(draft)
    >>> states[7], states.held_bytes
    ({'model': {'w': tensor([1., 1.])}}, 0)
    """

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        """`folder` is where the file is made, by default the system's place for such files."""
        self.budget = BUDGET if budget is None else budget
        self.held_bytes = 0
        """What the states in memory take there."""
        self._log = _Log(folder)
        self._held: dict[int, State] = {}  # the least recently written first
        self._places: dict[int, int] = {}

    def draft(self) -> ClientStates:
        """A place for states that do not count yet: `accept` takes them all at once, and those of
        a draft that is dropped never were."""
        draft = ClientStates(self.budget)
        draft._log = self._log
        return draft

    def accept(self, draft: ClientStates) -> None:
        """Take every state of a draft."""
        for cid in draft:
            self._forget(cid)
        self._places |= draft._places
        self._hold(draft._held)
        if self._log.records > 2 * len(self._places):  # most of the file is out of date
            self._log, self._places = self._log.copied(self._places)

    def __getitem__(self, cid: int) -> State:
        if cid in self._held:
            return self._held[cid]
        return unpack(self._log.read(self._places[cid]))

    def __setitem__(self, cid: int, state: State) -> None:
        self._forget(cid)
        self._hold({cid: with_own_memory(state)})

    def __delitem__(self, cid: int) -> None:
        if cid not in self:
            raise KeyError(cid)
        self._forget(cid)

    def __contains__(self, cid: object) -> bool:
        return cid in self._held or cid in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(sorted([*self._held, *self._places]))

    def __len__(self) -> int:
        return len(self._held) + len(self._places)

    def _hold(self, states: dict[int, State]) -> None:
        self._held |= states
        self.held_bytes += sum(map(_memory, states.values()))
        if self.held_bytes > self.budget // 2:
            self._spill(3 * self.budget // 8)  # many at once, not one in every round

    def _forget(self, cid: int) -> None:
        self._places.pop(cid, None)
        if cid in self._held:
            self.held_bytes -= _memory(self._held.pop(cid))

    def _spill(self, goal: int) -> None:
        """Move the oldest states to disk. Empty ones stay: their place in the file takes more."""
        moved, left = [], self.held_bytes
        for cid, state in self._held.items():
            if left <= goal:
                break
            if takes := _memory(state):
                moved.append(cid)
                left -= takes
        places = self._log.append((cid, packed(self._held[cid], f"client {cid}")) for cid in moved)
        for cid in moved:
            self._forget(cid)
        self._places |= places


class _Log:
    """Records in a file without a name: it is gone with its last user, even a killed one."""

    def __init__(self, folder: Path | None) -> None:
        self.records = 0
        self._folder = folder
        self._file: BinaryIO | None = None

    def append(self, items: Iterable[tuple[int, bytes]]) -> dict[int, int]:
        """Write packed states; returns where each one is."""
        places: dict[int, int] = {}
        try:
            file = self._file or self._opened()
            at = file.seek(0, os.SEEK_END)
            for cid, data in items:
                places[cid] = at
                at += file.write(record(cid, data))
            file.flush()
        except OSError as error:
            raise CheckpointError(
                f"cannot put clients' states on the disk in {self._folder or tempfile.gettempdir()}"
                f" ({error}); make room there, or let the run have more memory"
            ) from error
        self.records += len(places)
        return places

    def read(self, place: int) -> bytes:
        """The packed state at a place."""
        assert self._file is not None
        # Mapped for this read only: pages of a mapping that stays would count as ours for ever.
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            start = place + _HEAD.size
            _, size = _HEAD.unpack(view[place:start])
            return view[start : start + size]

    def copied(self, places: dict[int, int]) -> tuple[_Log, dict[int, int]]:
        """A new file with these records only."""
        new = _Log(self._folder)
        moved = new.append((cid, self.read(at)) for cid, at in places.items()) if places else {}
        return new, moved

    def _opened(self) -> BinaryIO:
        file: BinaryIO = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (kept open)
        weakref.finalize(self, file.close)
        self._file = file
        return file


def _memory(state: State) -> int:
    return nbytes(state) + TENSOR_BYTES * sum(map(len, state.values()))
