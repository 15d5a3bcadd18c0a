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
    link.send((head, layout, kinds))
    of_type: dict[str, list[Tensor]] = {}
    for (dtype, _), value in zip(kinds, tensors, strict=True):
        if value.nbytes < SMALL:
            of_type.setdefault(dtype, []).append(value.detach().cpu().reshape(-1))
        else:
            link.send_bytes(_memory(value.detach().cpu().contiguous()))
    for _, some in sorted(of_type.items()):
        link.send_bytes(_memory(torch.cat(some)))


def receive(link: Connection) -> tuple[Any, list[State]]:
    """The message at the other end of the pipe. What its states shared, they share again;
    otherwise every tensor has memory of its own."""
    head, layout, kinds = link.recv()
    tensors: dict[int, Tensor] = {}
    of_type: dict[str, list[int]] = {}
    for i, (dtype, shape) in enumerate(kinds):
        kind = getattr(torch, dtype)
        if math.prod(shape) * kind.itemsize < SMALL:
            of_type.setdefault(dtype, []).append(i)
        else:
            tensors[i] = torch.empty(shape, dtype=kind)
            link.recv_bytes_into(_memory(tensors[i]))
    for dtype, places in sorted(of_type.items()):
        sizes = [math.prod(kinds[i][1]) for i in places]
        joined = torch.empty(sum(sizes), dtype=getattr(torch, dtype))
        link.recv_bytes_into(_memory(joined))
        # Cloned: each gets memory of its own, aligned as torch's own.
        for i, part in zip(places, torch.split(joined, sizes), strict=True):
            tensors[i] = part.view(kinds[i][1]).clone()
    return head, [
        {name: {key: tensors[i] for key, i in keys} for name, keys in slices} for slices in layout
    ]


def _memory(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
