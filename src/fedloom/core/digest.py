"""Digests of states, and receipts that stand for states kept elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from fedloom.core.tree import State, form, plain_stack

RECEIPT = "@receipt"
"""The one slice of a receipt; no part can have this name."""


def digest(state: State) -> str:
    """Sha256 over slice, key, type, shape and bytes of every tensor; of a receipt, the digest it
    stands for.

    The order of dictionaries, strides and devices do not matter; an empty slice counts as absent.
    """
    if RECEIPT in state:
        return bytes(state[RECEIPT]["sha256"].tolist()).hex()
    sha = sha256()
    for name, tree in sorted(state.items()):
        for key in sorted(tree):
            tensor = tree[key]
            sha.update(_head(name, key, tensor.dtype, tensor.shape))
            sha.update(_bytes(tensor))
    return sha.hexdigest()


def digests(states: Sequence[State]) -> list[str]:
    """`digest` of several. Tensors of alike ones become bytes by one call for all: of small states
    the calls take longer than the hash.

    >>> a, b = {"model": {"w": torch.zeros(2)}}, {"model": {"w": torch.ones(2)}}
    >>> digests([a, b]) == [digest(a), digest(b)]
    True
    """
    if len(states) < 2 or RECEIPT in states[0] or len({form(state) for state in states}) > 1:
        return [digest(state) for state in states]
    columns = [
        (_head(name, key, tensor.dtype, tensor.shape), _bytes_of_each(name, key, states))
        for name, tree in sorted(states[0].items())
        for key, tensor in sorted(tree.items())
    ]
    found = []
    for i in range(len(states)):
        sha = sha256()
        for head, of_each in columns:
            sha.update(head)
            sha.update(of_each[i])
        found.append(sha.hexdigest())
    return found


def _bytes_of_each(name: str, key: str, states: Sequence[State]) -> Any:
    """The bytes of one tensor of every state, as the rows of an array."""
    return _bytes(plain_stack([state[name][key] for state in states])).reshape(len(states), -1)


def _bytes(tensor: Tensor) -> Any:
    """A tensor's bytes as a flat array, copied only where they do not lie in a row."""
    dense = tensor
    if tensor.requires_grad or not tensor.is_cpu or not tensor.is_contiguous():
        # Else each of these makes one more tensor, which takes as long as hashing a small one.
        dense = tensor.detach().cpu().contiguous()
    try:
        return dense.numpy().ravel()
    except TypeError:  # bfloat16 and other types that numpy does not have
        return dense.reshape(-1).view(torch.uint8).numpy()


@lru_cache(maxsize=4096)
def _head(name: str, key: str, dtype: torch.dtype, shape: torch.Size) -> bytes:
    """Before a tensor's bytes. Type and shape give the number of bytes that follow, so no two
    states give the same stream."""
    return json.dumps([name, key, str(dtype), list(shape)]).encode() + b"\n"


def receipt(sha256_hex: str) -> State:
    """Stands for a state with this digest that is kept elsewhere.

    >>> state = {"model": {"w": torch.ones(2)}}
    >>> digest(receipt(digest(state))) == digest(state)
    True
    """
    return {RECEIPT: {"sha256": torch.tensor(list(bytes.fromhex(sha256_hex)), dtype=torch.uint8)}}


def state_sha256(server: State, clients: Mapping[int, State]) -> str:
    """One digest of a whole federation, the same whether clients' states are here or receipts.

    A client that keeps nothing counts as absent.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> one = state_sha256({"model": {"a": a, "b": b}}, {3: {}})
    >>> one == state_sha256({"dbe": {}, "model": {"b": b, "a": a}}, {})
    True
    """
    sha = sha256(digest(server).encode())
    for cid in sorted(clients):  # one state at a time: there may be many
        state = clients[cid]
        if any(state.values()):
            sha.update(f"client {cid} {digest(state)}\n".encode())
    return sha.hexdigest()
