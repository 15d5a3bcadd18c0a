"""Problems small enough for paper and pencil, played through the real core.

Clients hold rows x = 1 with one target a_i, the loss is (output - a)^2 / 2, and training takes full
batches. So a net whose output is its only weight w has the gradient w - a_i, and a net whose output
is h * b (a body under a head) has h (hb - a) for b and b (hb - a) for h. Everything is float64, and
most numbers are sums of powers of two, so that tests can ask for equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.message import Down, Up
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Site, Visit
from fedloom.core.task import WHAT, Need, Task
from fedloom.core.term import Term
from fedloom.core.tree import State, Tree, clone
from helpers import Table


class Squares(Task):
    """Half the squared distance to the target; what parts make of classes is tested elsewhere."""

    @property
    def provides(self) -> frozenset[Need]:
        return frozenset(WHAT)

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return 0.5 * (logits - target).pow(2).sum(-1).mean()

    def predict(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def measure(self, prediction: Tensor, y: Tensor) -> dict[str, float]:
        return {"accuracy": 0.0, "nll": float((prediction - y).pow(2).mean())}


def linear(*rows: Sequence[float]) -> nn.Linear:
    """A linear layer without bias, with these weights [out, in]."""
    layer = nn.Linear(len(rows[0]), len(rows), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows, dtype=torch.float64))
    return layer


def point(w: float) -> Net:
    """One weight, which is the output."""
    return Net((1,), body=nn.Identity(), head=linear([w]))


def product(b: float, h: float) -> Net:
    """Two weights, a body under a head; the output is their product."""
    return Net((1,), body=linear([b]), head=linear([h]))


def rows(a: float, n: int = 1) -> ClientData:
    """A client with n equal rows x = 1, target a."""
    x, y = (torch.full((n, 1), v, dtype=torch.float64) for v in (1.0, a))
    return ClientData(Table(x, y), None, None, 1)


class Play:
    """A run one round at a time, with cohorts by hand: `send`, `client`, `merge`."""

    def __init__(self, method: Method, net: Net, *data: ClientData) -> None:
        self.program = Program(method, net, len(data), task=Squares())
        self.data = data
        self.server: State = initial_server(self.program)
        self.own: dict[int, State] = {}
        self.down: dict[int, Down] = {}
        self.up: dict[int, Up] = {}
        self.t = 0

    def round(self, *cohort: int) -> Play:
        """The next training round with these clients (none named: all)."""
        self.t += 1
        plan = next(p for p in self.program.schedule(self.t) if p.kind == "train" and p.t == self.t)
        return self._play(plan, cohort)

    def adapt(self) -> Play:
        """The last round of a method that fine-tunes."""
        return self._play(self.program.schedule(self.t)[-1], ())

    def _play(self, plan, cohort) -> Play:
        cohort = cohort or tuple(range(len(self.data)))
        r = Round(self.program, plan, self.server, cohort)
        for cid in cohort:
            self.down[cid] = send(r, cid)
            visit = Visit(self.program, cid, self.data[cid], self.down[cid], self.own.get(cid))
            self.up[cid], self.own[cid] = client(visit)
            r.add(cid, self.up[cid])
        self.server = merge(r)
        return self

    def site(self, cid: int) -> Site:
        """The client as it would stand if the next round began now."""
        r = Round(self.program, self.program.schedule(1)[0], self.server)
        return Site(Visit(self.program, cid, self.data[cid], send(r, cid), self.own.get(cid)))


def value(tree: Tree, key: str = "head.weight") -> float:
    """A tensor of one element as a number."""
    return tree[key].item()


def server_value(play: Play, key: str = "head.weight", part: str = METHOD) -> float:
    """A number of the server's state."""
    return value(play.server[part], key)


def kept(play: Play, cid: int, part: str, key: str = "head.weight") -> float:
    """A number a client keeps, or would if somebody trained it."""
    tree = play.own[cid][part]
    return value(tree if key in tree else play.program.frozen.tree, key)


def full(lr: float = 0.25, epochs: int = 1, **more: object) -> Opt:
    """Full batches, so that an epoch is a step."""
    return Opt(lr=lr, epochs=epochs, batch=1024, **more)


@dataclass(frozen=True)
class Spy(Term):
    """Writes down the model at every gradient; changes nothing."""

    name: ClassVar[str] = "spy"
    seen: ClassVar[list[tuple[str, int, list[str], Tree]]] = []

    def grads(self, g: Tree, s: Site) -> Tree:
        self.seen.append((s.phase.name, s.epoch, list(s.keys), clone(s.w)))
        return g
