"""APPLE: every client learns how much of every other client's model its own should contain."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools import client_rows
from fedloom.methods import register
from fedloom.ops.combination import combined


@register
@dataclass(frozen=True, kw_only=True)
class APPLE(Method):
    """Adaptive personalization across silos (Luo and Wu, IJCAI 2022, Algorithm 1).

    Client i trains a core model c_i, which the others use, and directed relationships p_i [N],
    which begin at p_0 = (n_1, ..., n_N) / n. It predicts with w_i = sum_j p_ij c_j. In round
    r = 0, 1, ...::

        client i  downloads all c_j; in each step, with g = grad f(w_i) and all at old values:
                  c_i   c_i - lr p_ii g
                  p_ij  p_ij - p_lr (<g, c_j> + lam(r) mu (p_ij - p_0j))
                  lam(r) = (1 + cos(pi r / L)) / 2 before round L, 0 from then on
        server    holds the N cores and replaces those that were uploaded
        at a test w_i from the cores as they are now

    p is not kept positive and need not sum to 1.

    Hyper-parameters: `mu` 0.1; `p_lr` 0.001; `fade_rounds` L 16, a tenth of the published 160
    rounds (in shorter or longer runs take a tenth of those). `fading` "cosine"; "exponential" takes
    lam(r) = 0.001^(r/L) instead. `weighting="uniform"` begins at p_0 = 1/N. The published rate of
    the cores is 0.01 with momentum 0.9. A core's gradient is scaled by p_ii, 1/N on average, so
    with N clients cores move at about 1/N of FedAvg's rate: a larger `lr`, up to N times FedAvg's,
    makes up for it.

    Deviations: the published code leaves out the penalty's factor 1/2 (which doubles mu), fades
    exponentially by default, has momentum 0.9 for p as for the cores (`p_momentum=0.9,
    momentum=0.9`), and begins every core at a random model of its own; here all begin at the same
    one. The BatchNorm statistics of a core are those of its owner's w_i. Cores of absent clients
    stay as they were. Clients are asked for their numbers of rows in a round before the first. A
    newcomer has no core and learns p alone. The global model, where one is asked for, is sum_j p_0j
    c_j. The paper's variant with limited downloads is left out.

    Leaves the client: its core, which all clients get, and its number of rows; never p.

    >>> APPLE(mu=0.01).before
    ('sizes',)
    """

    name: ClassVar[str] = "apple"
    family: ClassVar[str] = "clusters and mixtures"
    reveals: ClassVar[tuple[str, ...]] = ("single_models",)
    against_client_noise: ClassVar[str] = (
        "its clients send whole models and not the change of one that they were sent, so that"
        " clipping would leave next to nothing of them"
    )
    against_example_noise: ClassVar[str] = ""
    personal_model: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("sizes",)
    gathers_model: ClassVar[str] = "*"
    # These compare a model with the received one, which here is a core and predicts nothing.
    refuses: ClassVar[tuple[str, ...]] = (
        "proximal",
        "control_variates",
        "model_contrast",
        "fedbr",
        "fedntd",
        "client_momentum",
        "fedgen",
    )
    # Its cores need a larger rate than FedAvg's, see above.
    tunable: ClassVar[Tunable] = {"lr": Log(1e-2, 10), "mu": Log(1e-3, 1), "p_lr": Log(1e-4, 1e-1)}
    mu: float = 0.1
    p_lr: float = 0.001
    p_momentum: float = 0.0
    fade_rounds: int = 16
    fading: Literal["cosine", "exponential"] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.mu, self.p_lr, self.fade_rounds) < 0:
            raise BadInput("apple: mu, p_lr and fade_rounds must be 0 or more")
        if not 0 <= self.p_momentum < 1:
            raise BadInput(f"apple: p_momentum is 0 or more and below 1, not {self.p_momentum}")
        if self.fading not in ("cosine", "exponential"):
            raise BadInput(f"apple: fading must be cosine or exponential, got {self.fading!r}")

    # ------------------------------------------------------------------ server

    def server_init(self, r: Round) -> State:
        """The N cores, one row each, and the clients' numbers of rows, which are not known yet."""
        cores = client_rows.initial_rows(r)
        sizes = torch.zeros(r.plan.clients)
        return {**super().server_init(r), self.name: {**cores, "sizes": sizes}}

    def send(self, r: Round, cid: int) -> State:
        if r.plan.part == self.name:
            return {}  # the round before the first asks for sizes and sends no model
        return {
            METHOD: client_rows.tensors_without_rows(r, self.name),
            self.name: r.server[self.name],
        }

    def aggregate(self, r: Round) -> State:
        new = client_rows.updated_rows(r, self.name)
        for cid, up in r.ups.items():
            if cid < r.plan.clients:
                new["sizes"][cid] = up.n
        if r.plan.kind == "special":
            return {self.name: new}
        averaged = super().aggregate(r)[METHOD]
        return {METHOD: {**averaged, **self._mixture_by_p_0(new)}, self.name: new}

    # ------------------------------------------------------------------ client

    def special(self, s: Site) -> State:
        """Every answer states the client's number of rows, so there is nothing to add."""
        return {}

    def receive(self, s: Site) -> Tree:
        """The client's own core; a newcomer has none and gets the mixture by p_0."""
        downloaded = s.down.get(self.name)
        if not downloaded:
            return s.start  # the round of sizes
        if s.newcomer:
            core = self._mixture_by_p_0(downloaded)
        else:
            core = {k: rows[s.cid] for k, rows in downloaded.items() if k != "sizes"}
        return {**super().receive(s), **core}

    def step(self, b: Batch, s: Site) -> None:
        p = self._p(s)
        p_0 = self._p_0(s.down[self.name]["sizes"])
        others = self._other_cores(s)
        w_i = {**s.w, **{k: v.requires_grad_() for k, v in self._mixture(s).items()}}
        g = s.grad(replace(b), w_i)
        with torch.no_grad():
            penalty = self._lam(s.plan.t - 1) * self.mu * (p - p_0)
            p_lr = Phase(lr=self.p_lr).over(s.opt, s.plan.t).opt.lr  # with the run's decay
            direction = self._accelerated(self._slope_of_p(s, g) + penalty, s)
            s.own[self.name] = {"p": p - p_lr * direction}
            p_ii = self._own_share(s, p)
            s.apply({k: p_ii * v if k in others else v for k, v in g.items()})

    def personalize(self, s: Site) -> State:
        return {METHOD: {**s.w, **self._mixture(s)}}

    # ------------------------------------------------------------------ the paper's quantities

    def _p_0(self, sizes: Tensor) -> Tensor:
        """The clients' shares of all rows; equal shares before the sizes are known."""
        alike = self.weighting == "uniform" or not sizes.any()
        weights = torch.ones_like(sizes) if alike else sizes
        return weights / weights.sum()

    def _p(self, s: Site) -> Tensor:
        """p_i [N] as it was kept; p_0 at a client that has not trained yet."""
        own = s.own.get(self.name)
        return own["p"] if own else self._p_0(s.down[self.name]["sizes"])

    def _own_share(self, s: Site, p: Tensor) -> Tensor | float:
        """p_ii; 0 at a newcomer, who has no core."""
        return 0.0 if s.newcomer else p[s.cid]

    def _other_cores(self, s: Site) -> Tree:
        """The parameters of the downloaded cores, flat [N, size]; zeros in the row of this client,
        whose core is being trained in `s.w`."""
        if self.name not in s.memo:
            cores: Tree = {}
            for k, rows in s.down[self.name].items():
                if k in s.net.params:
                    cores[k] = rows.reshape(len(rows), -1).clone()
                    if not s.newcomer:
                        cores[k][s.cid] = 0
            s.memo[self.name] = cores
        others: Tree = s.memo[self.name]
        return others

    def _mixture(self, s: Site) -> Tree:
        """w_i = sum_j p_ij c_j, in the parameters of the cores."""
        p = self._p(s)
        p_ii = self._own_share(s, p)
        mixture: Tree = {}
        for k, rows in self._other_cores(s).items():
            core = s.w[k].detach()
            of_others = (p.to(rows) @ rows).view_as(core)
            mixture[k] = of_others + p_ii * core
        return mixture

    def _mixture_by_p_0(self, held: Tree) -> Tree:
        """sum_j p_0j c_j from the server's slice: the model of a client that has learnt no p."""
        p_0 = self._p_0(held["sizes"])[None].double()
        return {k: combined(p_0, rows)[0] for k, rows in held.items() if k != "sizes"}

    def _slope_of_p(self, s: Site, g: Tree) -> Tensor:
        """The derivative of f(w_i) in every p_ij: <g, c_j>, with c_i as it is now."""
        others = self._other_cores(s)
        slope = torch.zeros_like(self._p(s))
        for k, rows in others.items():
            slope = slope + (rows @ g[k].flatten()).to(slope)
        if not s.newcomer:
            of_own_core = torch.zeros((), device=s.device)
            for k in others:
                of_own_core = of_own_core + (g[k] * s.w[k]).sum()
            slope[s.cid] = of_own_core
        return slope

    def _accelerated(self, slope: Tensor, s: Site) -> Tensor:
        """v <- momentum v + slope within a round, as of torch's SGD."""
        if not self.p_momentum:
            return slope
        key = (self.name, "velocity")
        s.memo[key] = self.p_momentum * s.memo.get(key, torch.zeros_like(slope)) + slope
        velocity: Tensor = s.memo[key]
        return velocity

    def _lam(self, r: int) -> float:
        """The strength of the penalty in round r = 0, 1, ..."""
        if r >= self.fade_rounds:
            return 0.0
        share = max(r, 0) / self.fade_rounds
        if self.fading == "cosine":
            return (1 + math.cos(math.pi * share)) / 2
        return float(0.001**share)
