"""States over a pipe between two processes of this machine, with few copies.

Bytes go from a tensor's memory straight into the pipe and from the pipe into the new tensor's; only
small tensors are joined, type by type, since a message for each would cost more. A tensor that
several states hold crosses once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedloom.core.tree import State

SMALL = 1 << 15
"""Bytes below which tensors are joined."""


def send(link: Connection, head: Any, states: Sequence[State] = ()) -> None:
    """Write a message to the pipe: its head, which is pickled, and states."""
    tensors: list[Tensor] = []
    place: dict[int, int] = {}
    layout = []
    for state in states:
        slices = []
        for name, tree in state.items():
            for value in tree.values():
                if id(value) not in place:
                    place[id(value)] = len(tensors)
                    tensors.append(value)
            slices.append((name, [(key, place[id(value)]) for key, value in tree.items()]))
        layout.append(slices)
    kinds = [(str(v.dtype).removeprefix("torch."), tuple(v.shape)) for v in tensors]
    of_type: dict[str, list[Tensor]] = {}
    for (dtype, _), value in zip(kinds, tensors, strict=True):
        if value.nbytes < SMALL:
            of_type.setdefault(dtype, []).append(value.detach().cpu().reshape(-1))
    small = b"".join(_memory(torch.cat(some)) for _, some in sorted(of_type.items()))
    link.send((head, layout, kinds, small))
    for value in tensors:
        if value.nbytes >= SMALL:
            link.send_bytes(_memory(value.detach().cpu().contiguous()))


def receive(link: Connection) -> tuple[Any, list[State]]:
    """The message at the other end of the pipe. What its states shared, they share again;
    otherwise every tensor has memory of its own."""
    head, layout, kinds, joined = link.recv()
    tensors = _parted(kinds, bytearray(joined))
    for i, (dtype, shape) in enumerate(kinds):
        if i not in tensors:
            tensors[i] = torch.empty(shape, dtype=getattr(torch, dtype))
            link.recv_bytes_into(_memory(tensors[i]))
    return head, [
        {name: {key: tensors[i] for key, i in keys} for name, keys in slices} for slices in layout
    ]


def _parted(kinds: Sequence[tuple[str, tuple[int, ...]]], joined: bytearray) -> dict[int, Tensor]:
    """The small tensors of a message by their places: they were joined by type."""
    of_type: dict[str, list[int]] = {}
    for i, (dtype, shape) in enumerate(kinds):
        if math.prod(shape) * getattr(torch, dtype).itemsize < SMALL:
            of_type.setdefault(dtype, []).append(i)
    tensors: dict[int, Tensor] = {}
    at = 0
    for dtype, places in sorted(of_type.items()):
        sizes = [math.prod(kinds[i][1]) for i in places]
        kind = getattr(torch, dtype)
        flat = torch.empty(0, dtype=kind)
        if count := sum(sizes):
            flat = torch.frombuffer(joined, dtype=kind, count=count, offset=at)
            at += flat.nbytes
        # Cloned: each gets memory of its own, aligned as torch's own.
        for i, part in zip(places, flat.split(sizes), strict=True):
            tensors[i] = part.view(kinds[i][1]).clone()
    return tensors


def _memory(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
