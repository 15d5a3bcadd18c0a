"""Digests of states, and receipts that stand for states kept elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

import torch

from fedloom.core.tree import State, plain

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
            tensor = plain(tree[key])
            # Type and shape give the number of bytes that follow, so no two states give the same
            # stream.
            head = [name, key, str(tensor.dtype), list(tensor.shape)]
            sha.update(json.dumps(head).encode() + b"\n")
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


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
