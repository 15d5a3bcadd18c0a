"""A run written out as the three calls of an engine, so that every message of it can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from fedloom.core.client import client
from fedloom.core.data import Federation
from fedloom.core.digest import state_sha256
from fedloom.core.message import Down, Plan, Up
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.tree import State, Tree
from fedloom.core.wire import pack, unpack


@dataclass(frozen=True)
class Answer:
    """One client's visit in one round."""

    plan: Plan
    cid: int
    down: Down
    up: Up
    kept: State


@dataclass(frozen=True)
class Played:
    """What a run left, and every message of it."""

    server: State
    clients: dict[int, State]
    answers: list[Answer] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Of all states, by their bytes."""
        return state_sha256(self.server, self.clients)


def as_is(state: State) -> State:
    """Messages in one process: the very tensors."""
    return state


def as_bytes(state: State) -> State:
    """Messages over a wire: bytes and nothing else, so that no tensor is shared."""
    return unpack(pack(state))


def play(
    program: Program,
    data: Federation,
    plans: Iterable[Plan],
    start: Played | None = None,
    *,
    participation: float = 1.0,
    carry: Callable[[State], State] = as_is,
    order: Callable[[list[int]], Iterable[int]] = list,
    before_visit: Callable[[Visit], None] = lambda visit: None,
) -> Played:
    """Rounds by `send`, `client` and `merge` and nothing else; `carry` transports every state."""
    server = initial_server(program) if start is None else start.server
    clients = {} if start is None else dict(start.clients)
    answers: list[Answer] = []
    for plan in plans:
        cohort = program.cohort(plan, participation)
        r = Round(program, plan, server, cohort)
        for cid in order(cohort):
            own = None if cid not in clients else carry(clients[cid])
            down = Down(plan, carry(send(r, cid, own).state))
            visit = Visit(program, cid, data.client(cid), down, own)
            before_visit(visit)
            up, kept = client(visit)
            clients[cid] = kept
            r.add(cid, up.carrying(carry(up.state)))
            answers.append(Answer(plan, cid, down, up, kept))
        server = merge(r)
    return Played(server, clients, answers)


def digest(state: State | None) -> str:
    """The bytes of one state."""
    return state_sha256(state or {}, {})


def same(a: Tree, b: Tree) -> bool:
    """Equal keys, types and bits."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )


def finite(state: State) -> bool:
    """No infinity and no NaN anywhere."""
    return all(bool(torch.isfinite(v).all()) for tree in state.values() for v in tree.values())
