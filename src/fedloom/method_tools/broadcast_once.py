"""A constant the server gives every client once: the client keeps it, the server remembers who.

The part that owns the slice uses these in its hooks and declares `gathers`. A client whose state
was lost goes without for one round and says so; the next time it is given the constant again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.tree import State, Tree

if TYPE_CHECKING:
    from fedloom.core.round import Round
    from fedloom.core.site import Site

HOLDERS, LOST = "holders", "lost"


def made(constant: Mapping[str, Tensor], r: Round) -> Tree:
    """The server's slice when the constant is made: no client holds it yet."""
    return {**constant, HOLDERS: torch.zeros(r.plan.clients, dtype=torch.bool)}


def give(r: Round, name: str, cid: int) -> State:
    """`send`: the constant, unless the client holds it; unseen ids always get it."""
    tree = r.server.get(name, {})
    if not tree or (0 <= cid < len(tree[HOLDERS]) and tree[HOLDERS][cid]):
        return {}
    return {name: {k: v for k, v in tree.items() if k != HOLDERS}}


def at_hand(s: Site, name: str) -> Tree:
    """At a client: what arrived now, or was kept from before; empty if it was lost."""
    return s.down.get(name) or s.own.get(name) or {}


def keep(s: Site, name: str) -> State:
    """`finish`: keep what arrived. Nothing goes up, unless the constant was lost."""
    if not (constant := at_hand(s, name)):
        return {name: {LOST: torch.ones(1)}}
    s.own[name] = constant
    return {}


def noted(r: Round, name: str) -> Tree:
    """`aggregate`: whoever answered holds the constant, but for those who lost it."""
    holders = r.server[name][HOLDERS].clone()
    for cid, up in r.ups.items():
        if cid < len(holders):
            holders[cid] = name not in up.state
    return {**r.server[name], HOLDERS: holders}
