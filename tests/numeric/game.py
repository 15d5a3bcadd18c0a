"""Classification on small tables, played through the real core with cohorts by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.message import Down, Plan, Up
from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Site, Visit
from fedloom.core.term import Term
from fedloom.core.tree import State, Tree
from helpers import Table


class Game:
    """A run one round at a time: `send`, `client`, `merge`, and what they said."""

    def __init__(
        self,
        method: Method,
        nets: Net | Sequence[Net],
        *data: ClientData,
        members: int | None = None,
    ) -> None:
        """Data beyond `members` belongs to newcomers."""
        self.program = Program(method, nets, len(data) if members is None else members)
        self.data = data
        self.server: State = initial_server(self.program)
        self.own: dict[int, State] = {}
        self.down: dict[int, Down] = {}
        self.up: dict[int, Up] = {}
        self.notes: dict[str, Any] = {}
        self.t = 0

    def round(self, *cohort: int) -> Game:
        """The next training round with these clients (none named: all)."""
        self.t += 1
        plan = next(p for p in self.program.schedule(self.t) if p.kind == "train" and p.t == self.t)
        return self._play(plan, cohort)

    def rounds(self, count: int) -> Game:
        for _ in range(count):
            self.round()
        return self

    def adapt(self) -> Game:
        """The last round of a method that fine-tunes."""
        return self._play(self.program.schedule(self.t)[-1], ())

    def _play(self, plan: Plan, cohort: Sequence[int]) -> Game:
        cohort = cohort or tuple(range(self.program.clients))
        r = Round(self.program, plan, self.server, cohort)
        self.down, self.up = {}, {}
        for cid in cohort:
            self.down[cid] = send(r, cid)
            visit = Visit(self.program, cid, self.data[cid], self.down[cid], self.own.get(cid))
            self.up[cid], self.own[cid] = client(visit)
        for cid in reversed(cohort):  # whatever order they arrive in
            r.add(cid, self.up[cid])
        self.server, self.notes = merge(r), r.notes
        return self

    def site(self, cid: int) -> Site:
        """The client as it would stand if the next round began now."""
        r = Round(self.program, self.program.schedule(1)[-1], self.server)
        return Site(Visit(self.program, cid, self.data[cid], send(r, cid), self.own.get(cid)))


def rows(x: Sequence[Sequence[float]], y: Sequence[int], classes: int) -> ClientData:
    """A client with exactly these rows."""
    split = Table(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return ClientData(split, None, split, classes)


def cloud(key: int, n: int, held: Sequence[int], classes: int = 3, width: int = 4) -> ClientData:
    """Float32 rows about a centre per class, of these classes in turn."""
    y = torch.tensor([held[i % len(held)] for i in range(n)])
    centres = torch.randn(classes, width, generator=generator("centres"))
    x = centres[y] + 0.5 * torch.randn(n, width, generator=generator("cloud", key))
    return ClientData(Table(x, y), None, Table(x, y), classes)


def identity(d: int, classes: int, head: float = 0.0) -> Net:
    """f(x) = x in d dimensions under a head whose weights are all the same."""
    body, top = (nn.Linear(d, out, bias=False) for out in (d, classes))
    nn.init.eye_(body.weight)
    nn.init.constant_(top.weight, head)
    return Net((d,), body=body, head=top)


def part(tree: Tree, *stages: str) -> Tree:
    """The keys of some stages."""
    return {k: v for k, v in tree.items() if k.split(".")[0] in stages}


def features(net: Net, tree: Tree, data: ClientData, stage: str = "body") -> Tensor:
    """A stage's output over a client's training rows."""
    with torch.no_grad():
        return net(tree, data.train.x(torch.arange(len(data.train))), want=stage)[stage]


@dataclass(frozen=True)
class Watch(Term):
    """Writes down phase, epoch, rate and keys at every step; changes nothing."""

    name: ClassVar[str] = "watch"
    seen: ClassVar[list[tuple[str, int, float, frozenset[str]]]] = []

    def grads(self, g: Tree, s: Site) -> Tree:
        self.seen.append((s.phase.name, s.epoch, s.lr, frozenset(s.keys)))
        return g
