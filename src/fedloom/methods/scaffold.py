"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.message import Up
from fedloom.core.method import Method
from fedloom.core.round import Round
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.site import Site
from fedloom.core.term import AtOnce, Term
from fedloom.core.tree import State, Tree
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class ControlVariates(Term):
    """SCAFFOLD's correction, option II (Karimireddy et al., ICML 2020, Algorithm 1).

    The server holds a control variate c, client i holds c_i; both are zero at the start. x is the
    received model, y the model in training, S the set of participants of N clients. Each round::

        client i  K steps y <- y - lr (g(y) - c_i + c)                       line 10
                  c_i+ <- c_i - c + (x - y) / (K lr)                         line 12, option II
                  sends c_i+ - c_i, keeps c_i+
        server    c <- c + |S|/N mean_{i in S} (c_i+ - c_i)                  line 17

    K lr is counted for every tensor from the steps that were taken, so that a method which trains
    head and body in turn gets the right correction for each.

    Deviations: none. Momentum and weight decay act after the correction and are not part of the
    theory; with momentum, (x - y) / (K lr) overstates the gradient.

    Leaves the client: the change of its control variate, which is as large as the shared model.

    >>> (FedAvg() + ControlVariates()).terms
    (ControlVariates(),)
    """

    name: ClassVar[str] = "control_variates"
    family: ClassVar[str] = "drift correction"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_client_noise: ClassVar[str] = (
        "it sends the change of a control variate, and clipping that towards the server's variate"
        " makes the variate grow without bound; example(...) goes with it"
    )
    against_example_noise: ClassVar[str] = ""
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("grads", "finish")
    keeps_what_it_sent: ClassVar[str] = "c_i begins at zero, so the first difference is c_i itself"

    def server_init(self, r: Round) -> State:
        return {self.name: _zeros(r)}

    def client_init(self, s: Site) -> State:
        return {self.name: _zeros(s)}

    def grads(self, g: Tree, s: Site) -> Tree:
        c, c_i = s.down[self.name], s.own[self.name]
        corrected = dict(g)
        for k in g:
            if k in c:
                corrected[k] = g[k] + c[k] - c_i[k]  # line 10
        return corrected

    def finish(self, s: Site) -> State:
        c, c_i = s.down[self.name], s.own[self.name]
        x, y = s.received, s.w
        c_plus = dict(c_i)
        for k in c:
            k_lr = s.travel.get(k)
            if k_lr:  # a tensor that was not trained keeps its control variate
                c_plus[k] = c_i[k] - c[k] + (x[k] - y[k]) / k_lr  # line 12, option II
        s.own[self.name] = c_plus
        return {self.name: {k: c_plus[k] - c_i[k] for k in c}}

    def weight(self, r: Round, cid: int, up: Up) -> float:
        return 1.0

    def aggregate(self, r: Round) -> State:
        share = len(r.ups) / r.plan.clients
        change = r.mean(self.name)
        c = r.server[self.name]
        return {self.name: {k: c[k] + share * change[k] for k in c}}  # line 17


def _zeros(where: Round | Site) -> Tree:
    """A zero for every shared parameter, on the server or at a site."""
    trained_and_shared = where.shared & where.net.params
    initial = where.net.initial
    return {k: torch.zeros_like(v) for k, v in initial.items() if k in trained_and_shared}


@register
def SCAFFOLD(server_lr: float = 1.0) -> Method:
    """FedAvg with uniform weights + ControlVariates (Karimireddy et al., ICML 2020).

    `server_lr` is the paper's global step size (1.0). See `control_variates`.

    >>> SCAFFOLD().weighting
    'uniform'
    """
    return FedAvg(weighting="uniform", server=ServerOpt(lr=server_lr)) + ControlVariates()
