"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class ControlVariates(Term):
    """SCAFFOLD's correction, option II (Karimireddy et al., ICML 2020, Algorithm 1).

    Each round, c on the server and c_i at client i, both zero at the start::

        step      y <- y - lr (g(y) - c_i + c)                               line 10
        client    c_i+ <- c_i - c + (x - y) / (K lr)                         line 12, option II
                  sends c_i+ - c_i, keeps c_i+
        server    c <- c + |S|/N mean_{i in S} (c_i+ - c_i)                  line 17

    K lr is counted per tensor from the steps actually taken, so a method that trains head and body
    in turn gets the right correction for each.

    Deviations: none. Momentum and weight decay act after the correction and are not part of the
    theory; with momentum, (x - y)/(K lr) overstates the gradient.

    Leaves the client: the difference of its control variate, as large as the shared model.

    >>> (FedAvg() + ControlVariates()).terms
    (ControlVariates(),)
    """

    name: ClassVar[str] = "control_variates"
    family: ClassVar[str] = "drift correction"

    def server_init(self, r):
        return {self.name: _zeros(r)}

    def client_init(self, s):
        return {self.name: _zeros(s)}

    def grads(self, g, s):
        c, c_i = s.down[self.name], s.own[self.name]
        return {k: v + c[k] - c_i[k] if k in c else v for k, v in g.items()}  # line 10

    def finish(self, s):
        c, c_i = s.down[self.name], s.own[self.name]
        new = {
            k: c_i[k] - c[k] + (s.received[k] - s.w[k]) / travel  # line 12, option II
            for k in c
            if (travel := s.travel.get(k))
        }
        s.own[self.name] = c_i | new
        return {self.name: {k: s.own[self.name][k] - c_i[k] for k in c}}

    def weight(self, r, cid, up):
        return 1.0

    def aggregate(self, r):
        share = len(r.ups) / r.plan.clients
        change = r.mean(self.name)
        return {self.name: {k: c + share * change[k] for k, c in r.server[self.name].items()}}


def _zeros(where):
    """A zero for every shared parameter, on the server or at a site."""
    net = where.net
    return {
        k: torch.zeros_like(v) for k, v in net.initial.items() if k in where.shared & net.params
    }


@register
def SCAFFOLD(server_lr: float = 1.0) -> Method:
    """FedAvg with uniform weights + ControlVariates (Karimireddy et al., ICML 2020).

    `server_lr` is the paper's global step size (1.0). See `control_variates`.

    >>> SCAFFOLD().weighting
    'uniform'
    """
    return FedAvg(weighting="uniform", server_lr=server_lr) + ControlVariates()
