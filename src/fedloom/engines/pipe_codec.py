"""States over a pipe between two processes of this machine, with few copies.

A message of many small tensors would cost more for each of them than for its bytes. So those of one
type and shape, which are mostly one layer of many clients, cross as one stack; the bytes of large
ones go straight from a tensor's memory into the pipe and from the pipe into the new tensor's. A
tensor that several states hold crosses once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedloom.core.tree import State, plain_stack, unstacked

SMALL = 1 << 15
"""Bytes below which tensors are stacked."""

_Kind = tuple[torch.dtype, torch.Size, int]
"""Of the tensors in a stack. The number is the identity of what they may be a part of already; or,
of a large tensor, which goes alone, its own."""


def send(link: Connection, head: Any, states: Sequence[State] = ()) -> None:
    """Write a message to the pipe: its head, which is pickled, and states."""
    stacks: dict[_Kind, list[Tensor]] = {}
    places: dict[int, tuple[_Kind, int]] = {}
    forms: dict[Any, int] = {}
    form_of, held = [], []
    for state in states:
        form = tuple((name, tuple(tree)) for name, tree in state.items())
        form_of.append(forms.setdefault(form, len(forms)))
        for tree in state.values():
            for value in tree.values():
                if id(value) not in places:
                    alone = value if value.nbytes >= SMALL else value._base
                    kind = value.dtype, value.shape, id(alone)
                    stack = stacks.setdefault(kind, [])
                    places[id(value)] = kind, len(stack)
                    stack.append(value)
                held.append(places[id(value)])
    starts, end = {}, 0
    for kind, stack in stacks.items():
        starts[kind] = end
        end += len(stack)
    layout = list(forms), form_of, [starts[kind] + i for kind, i in held]
    described = [
        (str(dtype).removeprefix("torch."), (len(stack), *shape))
        for (dtype, shape, _), stack in stacks.items()
    ]
    link.send((head, layout, described))
    for stack in stacks.values():
        link.send_bytes(_memory(_stacked(stack)))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    first, whole = tensors[0], tensors[0]._base
    if len(tensors) == 1:
        return first.detach().cpu().contiguous()
    if whole is not None and _is_stack_of(whole, tensors):
        return whole
    return plain_stack(tensors)


def _is_stack_of(whole: Tensor, parts: Sequence[Tensor]) -> bool:
    """Is it dense, and made of these parts of it in this order?"""
    size = parts[0].numel()
    return (
        whole.shape == (len(parts), *parts[0].shape)
        and (whole.is_cpu and whole.is_contiguous() and whole.dtype == parts[0].dtype)
        and all(part.storage_offset() == i * size for i, part in enumerate(parts))
        and all(part.is_contiguous() for part in parts)
    )


def receive(link: Connection) -> tuple[Any, list[State]]:
    """The message at the other end of the pipe. What its states shared, they share again; other
    tensors may be parts of one stack, which no two of them overlap in."""
    head, (forms, form_of, places), described = link.recv()
    tensors: list[Tensor] = []
    for dtype, shape in described:
        stack = torch.empty(shape, dtype=getattr(torch, dtype))
        link.recv_bytes_into(_memory(stack))
        tensors += unstacked(stack)
    held = map(tensors.__getitem__, places)
    return head, [
        {name: dict(zip(keys, islice(held, len(keys)), strict=True)) for name, keys in forms[i]}
        for i in form_of
    ]


def _memory(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor."""
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
