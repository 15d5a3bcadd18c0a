"""FedFomo: every client takes from others' models as much as they help on its validation rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.core.data import Split
from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.rng import generator
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Integer, Linear, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools import client_rows
from fedloom.method_tools.holdout import hold_out
from fedloom.methods import register
from fedloom.ops.combination import combined
from fedloom.ops.greedy import epsilon_greedy

BEFORE = "before/"
"""Prefix of the kept tensors of theta_i', the model that a client's last training began at."""


@register
@dataclass(frozen=True, kw_only=True)
class FedFomo(Method):
    """First-order model optimization (Zhang et al., ICLR 2021).

    Client i keeps its model theta_i and theta_i', the model that its last training began at. The
    server has every client's latest model and an affinity matrix P [N, N], which begins as the
    identity. L_i is the loss on client i's validation rows. Each round::

        server    sends client i M - 1 other models: the highest in row i of P, but each with
                  probability epsilon any other; epsilon falls by a constant every round
        client i  u_n = (L_i(theta_i') - L_i(theta_n)) / ||theta_n - theta_i'||    n = i as well
                  a_n = max(u_n, 0) / sum max(u, 0)
                  theta_i <- theta_i' + sum_n a_n (theta_n - theta_i')    theta_i' if none helps
                  theta_i <- E epochs of SGD from there
        server    P_in <- P_in + u_n for the models that were sent
        at a test the mixture with the models as they are now

    Hyper-parameters: `models` M 5, the client's own among them (FedPAC: 5); `epsilon` 0.3 and
    `epsilon_decay` 0.05; `validation` 0.2, the share of a client's training rows that it holds out
    for L_i and does not train on. Where the data has a validation split, that split is used
    instead; rounds that are chosen by validation are then not independent of it. By the paper's
    `baseline="before"` the client's own training counts only as far as it lowered L_i: where it did
    not, on few validation rows by chance, theta_i' takes its place and a round's training is
    undone. With "current" u_n is measured from theta_i, which is then kept where no other model
    helps.

    Deviations: models of clients that have never answered are not sent. The published code begins
    P at 0.1 times the identity, adds u divided by |sum u| to it, and by default measures the
    distance in the L1 norm. The server's mean of the uploaded models is sent to no client; it is
    the global model, where one is asked for. A newcomer has no row in P: it begins at the initial
    model and is sent models at random.

    Leaves the client: its model, which other clients get as it is, and u_n.

    >>> FedFomo(models=3).epsilon
    0.3
    """

    name: ClassVar[str] = "fedfomo"
    family: ClassVar[str] = "clusters and mixtures"
    reveals: ClassVar[tuple[str, ...]] = ("single_models",)
    against_client_noise: ClassVar[str] = (
        "its clients send whole models and not the change of one that they were sent, so that"
        " clipping would leave next to nothing of them"
    )
    against_example_noise: ClassVar[str] = (
        "it mixes models and reports gains by losses on rows, which no clipped gradient bounds"
    )
    personal_model: ClassVar[bool] = True
    keeps_what_it_sent: ClassVar[str] = "the next mixture starts from the model it sent"
    gathers: ClassVar[bool] = True
    holds_out: ClassVar[str] = "validation"
    gathers_model: ClassVar[str] = "*"
    tunable: ClassVar[Tunable] = {"models": Integer(2, 10), "epsilon": Linear(0, 0.5)}
    models: int = 5
    epsilon: float = 0.3
    epsilon_decay: float = 0.05
    validation: float = 0.2
    baseline: Literal["before", "current"] = "before"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.models < 1 or self.epsilon_decay < 0:
            raise BadInput("fedfomo: models is 1 or more, epsilon_decay 0 or more")
        if self.baseline not in ("before", "current"):
            raise BadInput(f"fedfomo: baseline is before or current, not {self.baseline!r}")
        if not 0 <= self.epsilon <= 1 or not 0 < self.validation < 1:
            raise BadInput("fedfomo: epsilon and validation are shares, between 0 and 1")

    # ------------------------------------------------------------------ server

    def server_init(self, r: Round) -> State:
        n = r.plan.clients
        slice_ = {
            **client_rows.initial_rows(r),
            "affinity": torch.eye(n),  # P
            "answered": torch.zeros(n, dtype=torch.bool),
        }
        return {**super().server_init(r), self.name: slice_}

    def send(self, r: Round, cid: int) -> State:
        state = {METHOD: client_rows.tensors_without_rows(r, self.name)}
        ids = self._chosen_peers(r, cid)
        if not len(ids):
            return state
        held = r.server[self.name]
        models = {k: rows[ids] for k, rows in held.items() if k not in ("affinity", "answered")}
        return {**state, self.name: {**models, "ids": ids}}

    def _chosen_peers(self, r: Round, cid: int) -> Tensor:
        """Ids of the other clients whose models this one is sent, M - 1 at most."""
        slice_ = r.server[self.name]
        answered: list[int] = slice_["answered"].nonzero().flatten().tolist()
        others = [other for other in answered if other != cid]
        if not others or self.models == 1:
            return torch.tensor([], dtype=torch.int64)
        is_member = cid < r.plan.clients
        row = slice_["affinity"][cid] if is_member else torch.zeros(r.plan.clients)
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * max(r.plan.t - 1, 0))
        gen = r.gen(("peers", cid))
        chosen = epsilon_greedy(row[others], self.models - 1, epsilon, gen)
        return torch.tensor(others)[chosen]

    def aggregate(self, r: Round) -> State:
        new = client_rows.updated_rows(r, self.name)
        for cid, up in r.ups.items():
            if cid < r.plan.clients:
                new["affinity"][cid] += up.state[self.name]["gains"]
                new["answered"][cid] = True
        return {**super().aggregate(r), self.name: new}

    # ------------------------------------------------------------------ client

    def client_init(self, s: Site) -> State:
        initial = s.net.tree()
        return {**super().client_init(s), self.name: self._own_slice(s, initial, initial)}

    def _own_slice(self, s: Site, theta: Tree, theta_before: Tree) -> Tree:
        """What client i keeps: theta_i, and theta_i' under the prefix `before/`."""
        before = {BEFORE + k: v for k, v in client_rows.row_tensors(s, theta_before).items()}
        return {**client_rows.row_tensors(s, theta), **before}

    def receive(self, s: Site) -> Tree:
        """The mixture that local training begins at."""
        validation = self._validation_rows(s)
        own = s.own[self.name]
        theta = {k: v for k, v in own.items() if not k.startswith(BEFORE)}
        theta_before = {k: own[BEFORE + k] for k in theta}
        start = theta_before if self.baseline == "before" else theta
        baseline = {**super().receive(s), **start}

        peers = s.down.get(self.name, {})
        candidates = {k: torch.stack([v, *peers.get(k, ())]) for k, v in theta.items()}  # own first
        u = self._gains(s, baseline, candidates, validation)
        s.memo[self.name] = u
        positive = u.clamp_min(0)
        if not positive.any():
            return baseline
        a = (positive / positive.sum())[None].double()  # [1, M]
        return {**baseline, **{k: combined(a, models)[0] for k, models in candidates.items()}}

    def _validation_rows(self, s: Site) -> Split:
        """The data's validation split; without one, training rows that from here on do not train,
        the same in every round."""
        if s.data.val is not None:
            return s.data.val
        gen = generator(s.plan.seed, s.cid, self.name, "validation")
        train, validation = hold_out(s.data.train, self.validation, gen)
        s.data = replace(s.data, train=train, val=validation)
        return validation

    def _gains(self, s: Site, baseline: Tree, candidates: Tree, validation: Split) -> Tensor:
        """u_n of every candidate [M]; 0 for one that is the baseline to the bit."""
        y = validation.y.to(s.device)

        def loss(w: Tree) -> Tensor:
            return s.task.loss(s.scan(s.net.logits, w, validation), y)

        loss_of_baseline = loss(baseline)
        count = len(next(iter(candidates.values())))
        gains = []
        for n in range(count):
            theta_n = {k: models[n] for k, models in candidates.items()}
            distance = self._distance(s, theta_n, baseline)
            u_n = (loss_of_baseline - loss({**baseline, **theta_n})) / distance
            gains.append(torch.where(distance > 0, u_n, 0.0))
        return torch.stack(gains)

    def _distance(self, s: Site, theta_n: Tree, baseline: Tree) -> Tensor:
        """||theta_n - baseline|| over all parameters, without BatchNorm statistics."""
        gaps = [(v - baseline[k]).flatten() for k, v in theta_n.items() if k in s.net.params]
        distance: Tensor = torch.linalg.vector_norm(torch.cat(gaps))
        return distance

    def finish(self, s: Site) -> State:
        upload = super().finish(s)
        s.own[self.name] = self._own_slice(s, s.w, s.received)
        gains = torch.zeros(s.plan.clients)
        if self.name in s.down:
            ids = s.down[self.name]["ids"].cpu()
            gains[ids] = s.memo[self.name][1:].float().cpu()  # the first is the client's own
        return {**upload, self.name: {"gains": gains}}
