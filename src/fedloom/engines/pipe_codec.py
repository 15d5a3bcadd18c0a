"""States over a pipe between two processes of this machine, with few copies.

Bytes go from a tensor's memory straight into the pipe and from the pipe into the new tensor's; only
small tensors are joined, since a message for each would cost more. A tensor that several states
hold crosses once.
"""

from __future__ import annotations

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
    raw = [_bytes(value.detach().cpu().contiguous()) for value in tensors]
    kinds = [(str(v.dtype).removeprefix("torch."), tuple(v.shape)) for v in tensors]
    small = b"".join(_memory(r) for r in raw if len(r) < SMALL)
    link.send((head, layout, kinds, small))
    for large in raw:
        if len(large) >= SMALL:
            link.send_bytes(_memory(large))


def receive(link: Connection) -> tuple[Any, list[State]]:
    """The message at the other end of the pipe. What its states shared, they share again;
    otherwise every tensor has memory of its own."""
    head, layout, kinds, joined = link.recv()
    small, at = torch.frombuffer(bytearray(joined or b"-"), dtype=torch.uint8), 0
    tensors: list[Tensor] = []
    for dtype, shape in kinds:
        value = torch.empty(shape, dtype=getattr(torch, dtype))
        raw = _bytes(value)
        if len(raw) >= SMALL:
            link.recv_bytes_into(_memory(raw))
        else:
            raw.copy_(small[at : at + len(raw)])
            at += len(raw)
        tensors.append(value)
    return head, [
        {name: {key: tensors[i] for key, i in keys} for name, keys in slices} for slices in layout
    ]


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def _memory(raw: Tensor) -> Any:
    return memoryview(raw.numpy())  # type: ignore[arg-type]
