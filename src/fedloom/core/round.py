"""The server's side of one round: what server hooks see, and the two calls an engine makes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from fedloom.core.aggregation import Accumulator
from fedloom.core.compression import NONE
from fedloom.core.frozen import FROZEN
from fedloom.core.hook_errors import naming_hooks
from fedloom.core.message import Down, Plan, Up
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.program import Program
from fedloom.core.rng import rng_scope
from fedloom.core.secure.numbers import Numbers
from fedloom.core.secure.slices import SECURE
from fedloom.core.secure.upload import TYPES, MaskedSum, clear_part
from fedloom.core.tree import State, Tree, clone, select, with_own_memory
from fedloom.errors import LeakError


class Round:
    """The server in one round: what its hooks see.

    Uploads are folded into the weighted means in the order of client ids, whatever order they
    arrive in, and dropped, but for what a part declares with `gathers` and `gathers_model`; so
    memory does not grow with the cohort.
    """

    plan: Plan
    """The round: `plan.t` is its number, `plan.kind` is train, special or adapt."""
    server: State
    """The server's state before this round, by slice; for all parts the same."""
    cohort: list[int]
    """Ids of the clients in this round; empty where a server's state is only evaluated."""
    ups: dict[int, Up]
    """Uploads by client id; of their states only what some part gathers."""
    net: Net
    """The network, without weights; where clients have different ones, client 0's."""
    shared: frozenset[str]
    """Model keys that leave the clients."""
    method: Method
    """The method, with its settings."""
    notes: dict[str, Any]
    """What `aggregate` wants in the journal: plain values by the part's name."""
    program: Program
    """What all clients of the run have in common."""

    def __init__(
        self, program: Program, plan: Plan, server: State, cohort: Sequence[int] = ()
    ) -> None:
        self.program, self.plan, self.server = program, plan, server
        self.method = program.method
        self.net = program.nets[0]
        self.shared = program.shared(0)
        self.ups, self.notes = {}, {}
        self.cohort = sorted(cohort)
        self._folded: dict[str, Accumulator] = {}
        self._waiting: dict[int, Up | None] = {}
        self._sent: dict[int, State] = {}
        """What clients received that have not answered yet, where uploads are changes of it."""
        self._order = iter(self.cohort)
        self._next = next(self._order, None)
        parts = {p.name: p for p in program.method.parts}
        self._part_of = {name: parts[part] for name, part in program.writers.items()}
        self.masked = None if program.secure is None else MaskedSum(program.secure)
        """The uploads of a round with secure aggregation, until they are unmasked."""
        self.clipped: dict[str, int] = {}
        """Slice -> how many numbers of these uploads were, over all clients."""
        self._constants: State = {}
        gathered = (self.net.match(p.gathers_model) for p in program.method.parts)
        self._gathered: frozenset[str] = frozenset().union(*gathered)

    def gen(self, purpose: Hashable) -> Generator:
        """The server's generator for one purpose in this round."""
        return self.plan.gen(-1, purpose)

    def mean(self, name: str) -> Tree:
        """The weighted mean of a slice over the cohort, or what the run's `aggregation` has in its
        place; weights are the part's `weight`."""
        return self._folded[name].mean() if name in self._folded else {}

    def sum(self, name: str) -> Tree:
        """The weighted sum of a slice over the cohort."""
        return self._folded[name].sum() if name in self._folded else {}

    def stack(self, name: str, key: str) -> Tensor:
        """One tensor of every upload, [m, ...] in id order; needs `gathers` or `gathers_model`."""
        if name == METHOD and key not in self._gathered:
            raise LeakError(f"single uploads of {key!r} are read; gathers_model must name it")
        if name != METHOD and not self._part_of[name].gathers:
            raise LeakError(f"{name} reads single uploads; its part must declare gathers = True")
        return torch.stack([up.state[name][key] for up in self.ups.values()])

    def sends(self, cid: int, state: State) -> None:
        """Remember what a client receives for as long as its upload needs it."""
        if self.program.compression != NONE and cid in self.cohort:
            self._sent[cid] = {METHOD: state.get(METHOD, {})}

    def add(self, cid: int, up: Up | None) -> None:
        """Take one client's upload; None: the client did not answer."""
        sent = self._sent.pop(cid, {})
        if self.masked is not None:
            self._add_masked(cid, up)
            return
        if up is not None:
            state = self.program.compression.restored(up.state, sent)
            up = up.carrying(self.program.frozen.put_back(state))
        self._waiting[cid] = up
        while self._next is not None and self._next in self._waiting:
            self._fold(self._next, self._waiting.pop(self._next))
            self._next = next(self._order, None)

    def _fold(self, cid: int, up: Up | None) -> None:
        if up is None:
            return
        gathered = {n: t for n, t in up.state.items() if n != METHOD and self._part_of[n].gathers}
        if self._gathered and METHOD in up.state:
            gathered[METHOD] = select(up.state[METHOD], self._gathered)
        self.ups[cid] = Up(with_own_memory(gathered), up.n, up.metrics)
        for name, tree in up.state.items():
            with naming_hooks("on the server for client ", cid, ", ", self.plan):
                weight = weight_of(self, name, cid, up)
            if name not in self._folded:
                reference = self.server.get(name, {})
                self._folded[name] = self.program.aggregation.accumulator(reference)
            self._folded[name].fold(tree, weight)

    def _add_masked(self, cid: int, up: Up | None) -> None:
        """Whole numbers have the same sum in any order."""
        assert self.masked is not None
        if up is None:
            return
        clear = clear_part(self.program, up.state)
        self.masked.add(cid, up.state, clear)
        self._constants = self.program.frozen.put_back({FROZEN: clear.get(FROZEN, {})})
        own = {n: {k: v for k, v in t.items() if k != TYPES} for n, t in clear.items()}
        gathered = {n: t for n, t in own.items() if t and n != FROZEN}
        self.ups[cid] = Up(gathered, up.n, up.metrics)

    def unmask(self, masks: Numbers) -> None:
        """Take these masks off the sums of uploads."""
        assert self.masked is not None
        self.ups = dict(sorted(self.ups.items()))
        for name, total in self.masked.without(masks).items():
            self._folded[name] = replace(total, constants=self._constants.get(name, {}))
            self.clipped[name] = total.clipped
        self.notes[SECURE] = {"clipped": sum(self.clipped.values())}


def weight_of(r: Round, name: str, cid: int, up: Up) -> float:
    """A client's weight in the mean of a slice."""
    beside_the_model = name == r.method.name  # the method's second slice
    return 1.0 if beside_the_model else r._part_of[name].weight(r, cid, up)


def send(r: Round, cid: int, own: State | None = None) -> Down:
    """What one client receives: every part's contribution.

    `own` is what the client keeps, or a receipt for it. Only one that is new, without any, is sent
    what nobody trains.
    """
    state: State = {}
    with naming_hooks("on the server for client ", cid, ", ", r.plan):
        for part in r.method.parts:
            state |= part.send(r, cid)
    r.sends(cid, state)
    return Down(r.plan, state if own is None else r.program.frozen.left_out(state))


def initial_server(program: Program) -> State:
    """The server's state before the first round."""
    plan = Plan(0, seed=program.seed, clients=program.clients)
    r = Round(program, plan, {})
    with rng_scope(program.seed, "server_init"), naming_hooks("on the server, before the run"):
        for part in program.method.parts:
            r.server |= {k: clone(t) for k, t in part.server_init(r).items()}
    return r.server


def merge(r: Round) -> State:
    """The server's state after the round. Every part sees the old one and writes its own slice."""
    if r.plan.kind == "adapt" or not r.ups:
        return r.server
    parts = [r.program.owner(r.plan)] if r.plan.kind == "special" else r.method.parts
    writers, new = r.program.writers, dict(r.server)
    with (
        rng_scope(*r.plan.key, "server"),
        torch.no_grad(),
        naming_hooks(f"on the server, {r.plan}"),
    ):
        for part in parts:
            for name, tree in part.aggregate(r).items():
                if writers.get(name) != part.name:
                    raise LeakError(f"{r.plan}: {part.name} wrote the server slice {name!r}")
                new[name] = clone(tree)
    return new
