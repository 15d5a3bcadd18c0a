"""A server that holds one model per client: rows [N, ...], each replaced when its client uploads.

There are rows of the shared tensors that the method owns. Shared stages that terms added have none:
they are averaged, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedloom.core.net import METHOD, stage_of
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.tree import Tree, clone


def row_tensors(where: Round | Site, model: Mapping[str, Tensor]) -> Tree:
    """The tensors of a model that the server holds rows of."""
    owner = where.net.owner
    return {k: v for k, v in model.items() if k in where.shared and owner[stage_of(k)] == METHOD}


def initial_rows(r: Round) -> Tree:
    """For the hook `server_init`: every client's model is the initial one."""
    initial = row_tensors(r, r.net.tree())
    return {k: v.expand(r.plan.clients, *v.shape) for k, v in initial.items()}


def updated_rows(r: Round, name: str) -> Tree:
    """For the hook `aggregate`: a copy of the slice in which the participants' rows are what they
    uploaded. Newcomers have no row."""
    slice_ = clone(r.server[name])
    for cid, up in r.ups.items():
        for k, v in up.state.get(METHOD, {}).items():
            if k in slice_ and cid < r.plan.clients:
                slice_[k][cid] = v
    return slice_


def tensors_without_rows(r: Round, name: str) -> Tree:
    """For the hook `send`: the averaged tensors of the slice `model`, which terms added."""
    return {k: v for k, v in r.server[METHOD].items() if k not in r.server[name]}
