"""A state as bytes and back: safetensors, with the layout that keeps empty slices and order."""

from __future__ import annotations

import json

from safetensors import SafetensorError
from safetensors import torch as safetensors

from fedloom.core.tree import State, plain
from fedloom.files import parse_json


def pack(state: State) -> bytes:
    """The bytes of a state. Keys hold no line break.

    >>> import torch
    >>> unpack(pack({"model": {"w": torch.ones(1)}, "empty": {}}))
    {'model': {'w': tensor([1.])}, 'empty': {}}
    """
    layout = json.dumps([[name, list(tree)] for name, tree in state.items()])
    for name, tree in state.items():
        if broken := [key for key in tree if "\n" in key]:
            raise ValueError(f"key {broken[0]!r} of slice {name!r} holds a line break")
    tensors = {_flat(n, k): plain(v) for n, tree in state.items() for k, v in tree.items()}
    data: bytes = safetensors.save(tensors, metadata={"layout": layout})
    return data


def unpack(data: bytes) -> State:
    """The state that `pack` wrote, bit for bit; other bytes are a ValueError."""
    try:
        tensors = safetensors.load(data)
        header_bytes = int.from_bytes(data[:8], "little")
        layout = parse_json(parse_json(data[8 : 8 + header_bytes])["__metadata__"]["layout"])
        # Cloned: tensors cut from a buffer are not aligned as torch aligns its own, and kernels may
        # round differently on unaligned memory, so that resumed would not equal straight.
        return {
            name: {key: tensors[_flat(name, key)].clone() for key in keys} for name, keys in layout
        }
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError) as e:
        raise ValueError(f"these bytes are no packed state ({type(e).__name__}: {e})") from None


def _flat(name: str, key: str) -> str:
    return f"{name}\n{key}"
