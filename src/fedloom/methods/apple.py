"""APPLE: every client learns how much of every other client's model its own should contain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.errors import BadInput
from fedloom.method_tools import client_rows
from fedloom.methods import register
from fedloom.ops.combination import combined


@register
@dataclass(frozen=True, kw_only=True)
class APPLE(Method):
    """Adaptive personalization across silos (Luo and Wu, IJCAI 2022, Algorithm 1).

    Client i trains a core model c_i, which others use, and directed relationships p_i [N], which
    begin at p_0 = (n_1, ..., n_N)/n; it predicts with w_i = sum_j p_ij c_j. Round r = 0, 1, ...::

        client i  downloads all c_j; each step, with g = grad f(w_i):
                  c_i   c_i - lr p_ii g
                  p_ij  p_ij - p_lr (<g, c_j> + lam(r) mu (p_ij - p_0j))       all at old values
                  lam(r) = (1 + cos(pi r / L)) / 2 before round L, 0 from then on
        server    holds the N cores, replaces those that came
        at a test w_i from the cores as they are now

    p is not kept positive and need not sum to 1.

    Hyper-parameters: `mu` 0.1; `p_lr` 0.001; `fade_rounds` L 16 (a tenth of the published 160
    rounds); `fading` "exponential": lam(r) = 0.001^(r/L). `weighting="uniform"`: p_0 = 1/N.

    Deviations: the code leaves out the penalty's 1/2 (double mu), gives p momentum and begins
    every core at random; here all begin alike. A core's BatchNorm statistics are those of its
    owner's w_i. Absent clients' cores stay as they were. Sizes are asked for in a round before
    the first. A newcomer has no core and learns p alone. The global model, if one is asked for, is
    sum_j p_0j c_j. The paper's variant with limited downloads is left out.

    Leaves the client: its core, which all clients get, and its number of rows; never p.

    >>> APPLE(mu=0.01).before
    ('sizes',)
    """

    name: ClassVar[str] = "apple"
    family: ClassVar[str] = "clusters and mixtures"
    before: ClassVar[tuple[str, ...]] = ("sizes",)
    gathers_model: ClassVar[str] = "*"
    # These measure a model against the received one, which here is a core nobody predicts with.
    refuses: ClassVar[tuple[str, ...]] = (
        *("proximal", "control_variates", "model_contrast", "fedbr"),
        *("fedntd", "client_momentum", "fedgen"),
    )
    mu: float = 0.1
    p_lr: float = 0.001
    fade_rounds: int = 16
    fading: Literal["cosine", "exponential"] = "cosine"

    def __post_init__(self):
        super().__post_init__()
        if min(self.mu, self.p_lr, self.fade_rounds) < 0:
            raise BadInput("apple: mu, p_lr and fade_rounds must be 0 or more")
        if self.fading not in ("cosine", "exponential"):
            raise BadInput(f"apple: fading must be cosine or exponential, got {self.fading!r}")

    def server_init(self, r):
        sizes = torch.zeros(r.plan.clients)
        return {
            **super().server_init(r),
            self.name: {**client_rows.initial_rows(r), "sizes": sizes},
        }

    def send(self, r, cid):
        if r.plan.part == self.name:
            return {}  # the question for sizes
        return {
            METHOD: client_rows.tensors_without_rows(r, self.name),
            self.name: r.server[self.name],
        }

    def aggregate(self, r):
        new = client_rows.updated_rows(r, self.name)
        for cid in r.ups.keys() & set(range(r.plan.clients)):
            new["sizes"][cid] = r.ups[cid].n
        if r.plan.kind == "special":
            return {self.name: new}
        return {METHOD: {**super().aggregate(r)[METHOD], **self._usual(new)}, self.name: new}

    def _usual(self, held):
        """sum_j p_0j c_j from the server's slice: the model of a client that has learnt no p."""
        p_0 = self._p_0(held["sizes"])[None].double()
        return {k: combined(p_0, v)[0] for k, v in held.items() if k != "sizes"}

    def _p_0(self, sizes):
        alike = self.weighting == "uniform" or not sizes.any()
        weights = torch.ones_like(sizes) if alike else sizes
        return weights / weights.sum()

    def receive(self, s):
        if not (held := s.down.get(self.name)):
            return s.start
        mine = {k: v[s.cid] for k, v in held.items() if k != "sizes" and not s.newcomer}
        return {**super().receive(s), **(mine or self._usual(held))}

    def special(self, s):
        return {}  # an answer tells the number of rows

    def _p(self, s):
        kept = s.own.get(self.name) or {"p": self._p_0(s.down[self.name]["sizes"])}
        return kept["p"], 0.0 if s.newcomer else kept["p"][s.cid]

    def _others(self, s):
        """The downloaded cores' parameters, flat [N, size]; zeros where this client's own was."""
        if self.name not in s.memo:
            held = s.down[self.name]
            flat = {k: v.reshape(len(v), -1).clone() for k, v in held.items() if k in s.net.params}
            for rows in () if s.newcomer else flat.values():
                rows[s.cid] = 0
            s.memo[self.name] = flat
        return s.memo[self.name]

    def _mixture(self, s):
        """w_i at the cores' parameters; all the rest is the client's own."""
        p, mine = self._p(s)
        mixed = {k: p.to(v) @ v for k, v in self._others(s).items()}
        return {k: v.view_as(s.w[k]) + mine * s.w[k].detach() for k, v in mixed.items()}

    def step(self, b, s):
        (p, mine), others, mixed = self._p(s), self._others(s), self._mixture(s)
        w = {**s.w, **{k: v.requires_grad_() for k, v in mixed.items()}}
        g = s.grad(replace(b), w)
        with torch.no_grad():
            slope = sum((others[k] @ g[k].flatten()).to(p) for k in others)
            if not s.newcomer:
                slope[s.cid] = sum((g[k] * s.w[k]).sum() for k in others)
            pull = self._lam(s.plan.t - 1) * self.mu * (p - self._p_0(s.down[self.name]["sizes"]))
            rate = Phase(lr=self.p_lr).over(s.opt, s.plan.t).opt.lr
            s.own[self.name] = {"p": p - rate * (slope + pull)}
            s.apply({k: mine * v if k in others else v for k, v in g.items()})

    def _lam(self, r):
        if r >= self.fade_rounds:
            return 0.0
        share = max(r, 0) / self.fade_rounds
        return (1 + math.cos(math.pi * share)) / 2 if self.fading == "cosine" else 0.001**share

    def personalize(self, s):
        return {METHOD: {**s.w, **self._mixture(s)}}
