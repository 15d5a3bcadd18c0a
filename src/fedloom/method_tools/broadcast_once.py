"""A constant that the server sends to every client once: the client keeps it, and the server
remembers who holds it.

The part that owns the slice uses these functions in its hooks and declares `gathers`. A client that
lost its state goes without the constant for one round and reports that; in its next round the
server sends the constant again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.tree import State, Tree

HOLDERS = "holders"
"""Key, in the server's slice, of which clients hold the constant [N]."""
LOST = "lost"
"""Key of an upload that says: this client does not hold the constant any more."""


def start(r: Round, constant: Mapping[str, Tensor]) -> Tree:
    """The server's slice when there is a new constant: no client holds it yet."""
    return {**constant, HOLDERS: torch.zeros(r.plan.clients, dtype=torch.bool)}


def send(r: Round, name: str, cid: int) -> State:
    """For the hook `send`: the constant, unless the client holds it. Newcomers always get it."""
    slice_ = r.server.get(name, {})
    if not slice_:
        return {}
    holders = slice_[HOLDERS]
    if 0 <= cid < len(holders) and holders[cid]:
        return {}
    return {name: {k: v for k, v in slice_.items() if k != HOLDERS}}


def received(s: Site, name: str) -> Tree:
    """The constant at a client, which received it now or in an earlier round; empty if it was
    lost."""
    return s.down.get(name) or s.own.get(name) or {}


def keep(s: Site, name: str) -> State:
    """For the hook `finish`: keep the constant. Nothing is uploaded, unless it was lost."""
    constant = received(s, name)
    if not constant:
        return {name: {LOST: torch.ones(1)}}
    s.own[name] = constant
    return {}


def mark_holders(r: Round, name: str) -> Tree:
    """For the hook `aggregate`: every participant holds the constant now, unless it reported the
    loss."""
    holders = r.server[name][HOLDERS].clone()
    for cid, up in r.ups.items():
        if cid < len(holders):
            holders[cid] = name not in up.state
    return {**r.server[name], HOLDERS: holders}
