"""FedFomo: every client takes from others' models as much as they help on its validation rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.rng import generator
from fedloom.errors import BadInput
from fedloom.method_tools import client_rows
from fedloom.method_tools.holdout import hold_out
from fedloom.methods import register
from fedloom.ops.combination import combined
from fedloom.ops.greedy import epsilon_greedy

BEFORE = "before/"
"""Prefix of the kept tensors of the model that a client's last training began at."""


@register
@dataclass(frozen=True, kw_only=True)
class FedFomo(Method):
    """First-order model optimization (Zhang et al., ICLR 2021).

    Client i keeps its model theta_i and theta_i', which its last training began at; the server has
    everybody's latest and an affinity P [N, N] that begins as the identity. Each round, L_i being
    the loss on client i's validation rows::

        server    sends client i M - 1 other models: the highest in row i of P, but each with
                  probability epsilon any other; epsilon falls by a constant every round
        client i  u_n = (L_i(theta_i') - L_i(theta_n)) / ||theta_n - theta_i'||    n = i as well
                  a_n = max(u_n, 0) / sum max(u, 0)
                  theta_i <- theta_i' + sum_n a_n (theta_n - theta_i')    none helps: theta_i'
                  theta_i <- E epochs of SGD from there
        server    P_in <- P_in + u_n for the models that were sent
        at a test the mixture with the models as they are now

    Hyper-parameters: `models` M 5, the client's own among them (FedPAC: 5); `epsilon` 0.3 and
    `epsilon_decay` 0.05; `validation` 0.2, the share of a client's training rows that it holds out
    for L_i and does not train on. Where the data has a validation split, that split is used
    instead, and a choice of rounds by validation is then not independent of it.
    `baseline="current"`: u_n is measured from theta_i, which then stays where nobody else's helps.

    Deviations: models of clients that have never answered are not sent. The published code begins
    P at 0.1 times the identity, adds u to it divided by |sum u|, and measures the distance by L1
    unless told otherwise. The server's mean of the models that came is sent to nobody; it is the
    global model, where one is asked for. A newcomer has no row in P: it begins at the initial model
    and is sent models at random.

    Leaves the client: its model, which other clients get as it is, and u_n.

    >>> FedFomo(models=3).epsilon
    0.3
    """

    name: ClassVar[str] = "fedfomo"
    family: ClassVar[str] = "clusters and mixtures"
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "*"
    models: int = 5
    epsilon: float = 0.3
    epsilon_decay: float = 0.05
    validation: float = 0.2
    baseline: Literal["before", "current"] = "before"

    def __post_init__(self):
        super().__post_init__()
        if self.models < 1 or self.epsilon_decay < 0:
            raise BadInput("fedfomo: models is 1 or more, epsilon_decay 0 or more")
        if self.baseline not in ("before", "current"):
            raise BadInput(f"fedfomo: baseline is before or current, not {self.baseline!r}")
        if not 0 <= self.epsilon <= 1 or not 0 < self.validation < 1:
            raise BadInput("fedfomo: epsilon and validation are shares, between 0 and 1")

    def server_init(self, r):
        n = r.plan.clients
        known = {"affinity": torch.eye(n), "answered": torch.zeros(n, dtype=torch.bool)}
        return {**super().server_init(r), self.name: {**client_rows.initial_rows(r), **known}}

    def send(self, r, cid):
        held, down = r.server[self.name], {METHOD: client_rows.tensors_without_rows(r, self.name)}
        others = [j for j in held["answered"].nonzero().flatten().tolist() if j != cid]
        if not others or self.models == 1:
            return down
        score = held["affinity"][cid] if cid < r.plan.clients else torch.zeros(r.plan.clients)
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * max(r.plan.t - 1, 0))
        chosen = epsilon_greedy(score[others], self.models - 1, epsilon, r.gen(("peers", cid)))
        ids = torch.tensor(others)[chosen]
        rows = {k: v[ids] for k, v in held.items() if k not in ("affinity", "answered")}
        return {**down, self.name: {**rows, "ids": ids}}

    def client_init(self, s):
        return {**super().client_init(s), self.name: self._kept(s, s.net.tree(), s.net.tree())}

    def _kept(self, s, trained, before):
        begun = {BEFORE + k: v for k, v in client_rows.row_tensors(s, before).items()}
        return {**client_rows.row_tensors(s, trained), **begun}

    def receive(self, s):
        if s.data.val is None:  # fixed: the same rows in every round
            gen = generator(s.plan.seed, s.cid, self.name, "validation")
            train, val = hold_out(s.data.train, self.validation, gen)
            s.data = replace(s.data, train=train, val=val)
        mine, sent = s.own[self.name], s.down.get(self.name, {})
        trained = {k: v for k, v in mine.items() if not k.startswith(BEFORE)}
        start = BEFORE if self.baseline == "before" else ""
        base = {**super().receive(s), **{k: mine[start + k] for k in trained}}
        rows = {k: torch.stack([v, *sent.get(k, ())]) for k, v in trained.items()}  # own first
        s.memo[self.name] = gains = self._gains(s, base, rows)
        helpful = gains.clamp_min(0)
        if not helpful.any():
            return base
        weights = (helpful / helpful.sum())[None].double()
        return {**base, **{k: combined(weights, v)[0] for k, v in rows.items()}}

    def _gains(self, s, base, rows):
        """u_n of every candidate [M]; 0 for one that is the baseline to the bit."""
        y = s.data.val.y.to(s.device)

        def loss(w):
            return s.task.loss(s.scan(s.net.logits, w, s.data.val), y)

        found, here = [], loss(base)
        for n in range(len(next(iter(rows.values())))):
            other = {k: v[n] for k, v in rows.items()}
            gaps = [(v - base[k]).flatten() for k, v in other.items() if k in s.net.params]
            far = torch.linalg.vector_norm(torch.cat(gaps))
            gain = (here - loss({**base, **other})) / far
            found.append(torch.where(far > 0, gain, 0.0))
        return torch.stack(found)

    def finish(self, s):
        up = super().finish(s)
        s.own[self.name] = self._kept(s, s.w, s.received)
        gains = torch.zeros(s.plan.clients)
        if self.name in s.down:
            gains[s.down[self.name]["ids"].cpu()] = s.memo[self.name][1:].float().cpu()
        return {**up, self.name: {"gains": gains}}

    def aggregate(self, r):
        new = client_rows.updated_rows(r, self.name)
        for cid in sorted(r.ups.keys() & set(range(r.plan.clients))):
            new["affinity"][cid] += r.ups[cid].state[self.name]["gains"]
            new["answered"][cid] = True
        return {**super().aggregate(r), self.name: new}
