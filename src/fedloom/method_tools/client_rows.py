"""A server that holds one model per client: rows [N, ...], each replaced when its client answers.

The rows are of the shared tensors that the method owns; shared stages of terms are averaged, as
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.core.net import METHOD, stage_of
from fedloom.core.tree import Tree, clone

if TYPE_CHECKING:
    from fedloom.core.round import Round
    from fedloom.core.site import Site


def kept(where: Round | Site, tree: Mapping[str, Tensor]) -> Tree:
    """The part of a model that rows hold, on the server or at a site."""
    owner = where.net.owner
    return {k: v for k, v in tree.items() if k in where.shared and owner[stage_of(k)] == METHOD}


def opened(r: Round) -> Tree:
    """The rows at the start: everybody's model is the initial one."""
    initial = kept(r, r.net.tree())
    return {k: v.expand(r.plan.clients, *v.shape) for k, v in initial.items()}


def updated(r: Round, name: str) -> Tree:
    """`aggregate`: a copy of the slice in which the rows of those who answered are new; ids that
    no row belongs to (newcomers) leave none."""
    slice_ = clone(r.server[name])
    for cid, up in r.ups.items():
        for k, v in up.state.get(METHOD, {}).items():
            if k in slice_ and cid < r.plan.clients:
                slice_[k][cid] = v
    return slice_


def averaged(r: Round, name: str) -> Tree:
    """`send`: the tensors of the slice `model` that have no rows, because terms added them."""
    return {k: v for k, v in r.server[METHOD].items() if k not in r.server[name]}
