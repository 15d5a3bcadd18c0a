"""One process of a Ray cluster: answers bundles, and keeps what its clients kept."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.stopwatch import timed
from fedloom.core.threads import on_one_thread
from fedloom.core.tree import State, with_own_memory
from fedloom.engines.bundle import Bundle
from fedloom.engines.pipe_codec import receive, send
from fedloom.engines.worker import Worker, failure, reply_head
from fedloom.errors import needs_extra
from fedloom.extensions import load_extensions

ELSEWHERE = torch.empty(0)
"""Stands in a message for a tensor that is in the object store."""
Parts = list[Any]


def import_ray() -> Any:
    """The package: only when it is used, because it is an extra and takes most of a second."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns that it will be
    with needs_extra("ray"):
        return import_module("ray")


class Parcel:
    """What `pipe_codec` writes to and reads from in place of a pipe: parts of one message, the
    large ones arrays, which Ray moves without copying."""

    def __init__(self, parts: Parts | None = None) -> None:
        self.parts: Parts = [] if parts is None else parts
        self._read = 0

    def send(self, message: Any) -> None:
        """Take a message's first part."""
        self.parts.append(message)

    def send_bytes(self, data: memoryview) -> None:
        """Take a large tensor's memory."""
        self.parts.append(np.frombuffer(data, np.uint8))

    def recv(self) -> Any:
        """The next part."""
        self._read += 1
        return self.parts[self._read - 1]

    def recv_bytes_into(self, memory: memoryview) -> None:
        """The next part, copied: memory of the object store is shared and read-only."""
        memory[:] = memoryview(self.recv())


def packed(head: Any, states: Sequence[State] = ()) -> Parts:
    """A message as parts."""
    parcel: Any = Parcel()
    send(parcel, head, states)
    parts: Parts = parcel.parts
    return parts


def unpacked(parts: Parts) -> tuple[Any, list[State]]:
    """The message of some parts, in memory of this process."""
    parcel: Any = Parcel(parts)
    return receive(parcel)


def addressed(
    bundle: Bundle, common: Mapping[int, int], yours: Sequence[int], forget: Sequence[int]
) -> Parts:
    """A bundle for an actor that gets the `common` tensors (identity -> number) from the object
    store, holds the states of `yours` (places in the bundle) itself, and shall `forget` the states
    of some clients."""
    elsewhere = []
    states: list[State] = []
    for i, state in enumerate(bundle.states):
        slices: State = {}
        for name, tree in state.items():
            slices[name] = {}
            for key, value in tree.items():
                number = common.get(id(value))
                slices[name][key] = value if number is None else ELSEWHERE
                if number is not None:
                    elsewhere.append((i, name, key, number))
        states.append(slices)
    for place in yours:
        states[2 * place + 1] = {}
    head = {"elsewhere": elsewhere, "yours": list(yours), "forget": list(forget)}
    return packed({**bundle.head, **head}, states)


class Actor:
    """Answers calls one at a time, in their order."""

    def __init__(self, path: Sequence[str]) -> None:
        """`path` is where the driver finds modules; a user's may be in any of its folders."""
        sys.path += [folder for folder in path if folder not in sys.path]
        on_one_thread()
        self._ray = import_ray()
        # Arrays of the object store are meant to be read only; nobody writes through the tensors.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def open(self, program_and_data: Sequence[Any], device: str, imports: Sequence[str]) -> Parts:
        """Get ready for a run; `imports` are the users' files and modules that it needs."""

        def ready() -> Parts:
            load_extensions(imports)
            program, data = self._ray.get(list(program_and_data))
            self._worker = Worker(program, data, device)
            self._kept: dict[int, State] = {}
            self._common: tuple[str, list[Tensor]] = "", []
            timed.drain()  # the time it took to start is not the run's
            return packed(reply_head([]))

        return self._tried(ready)

    def answer(self, parts: Parts, common: Sequence[Any]) -> Parts:
        """What is asked in a bundle; `common` is where its common tensors are."""

        def answered() -> Parts:
            timed.add({"waiting": time.perf_counter() - self._ended})
            with timed("transfer"):
                head, states = self._complete(*unpacked(parts), common[0])
            answers, new_states = self._worker.answers(head, states)
            if head["task"] == "client":
                self._keep(dict(zip(head["ids"], new_states[1::2], strict=True)))
            with timed("transfer"):
                return packed(reply_head(answers, self._worker.drain_reports()), new_states)

        return self._tried(answered)

    def _complete(
        self, head: dict[str, Any], states: list[State], common: Any
    ) -> tuple[dict[str, Any], list[State]]:
        """A message with what it left out."""
        if head["elsewhere"] and self._common[0] != common.hex():
            _, (tree,) = unpacked(self._ray.get(common))
            self._common = common.hex(), list(tree["common"].values())
        for i, name, key, number in head["elsewhere"]:
            states[i][name][key] = self._common[1][number]
        for place in head["yours"]:
            states[2 * place + 1] = self._kept[head["ids"][place]]
        for cid in head["forget"]:
            self._kept.pop(cid, None)
        return head, states

    def _keep(self, states: Mapping[int, State]) -> None:
        for cid, kept in states.items():
            self._kept.pop(cid, None)
            if kept:
                self._kept[cid] = with_own_memory(kept)

    def _tried(self, work: Callable[[], Parts]) -> Parts:
        try:
            return work()
        except Exception as e:
            return packed(failure(e))
        finally:
            self._ended = time.perf_counter()
