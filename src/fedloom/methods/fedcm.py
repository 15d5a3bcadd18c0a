"""FedCM: every local step goes partly where the last global update went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class ClientMomentum(Term):
    """FedCM's client-level momentum (Xu et al., 2021).

    Delta is zero at the start and sent with the model x. Each round::

        step      v <- alpha g(y) + (1 - alpha) Delta;  y <- y - lr v
        client    sends y and K lr, the length of its way
        server    Delta <- (x - mean y) / (K lr)
                  x <- mean y                       (server_lr: only so far along the way)

    Hyper-parameters: `alpha` 0.1 (the paper's and FedBR's); 1 is FedAvg.

    Deviations: where clients take unlike numbers of steps, which the paper does not, K lr is their
    mean, per tensor. Momentum, weight decay and clipping act after the correction and are not part
    of the theory; FedBR's code has momentum 0.9 on top. Only shared parameters are corrected.

    Leaves the client: one number per tensor, K lr. Down comes Delta, as large as the model.

    >>> (FedAvg() + ClientMomentum(alpha=0.5)).terms
    (ClientMomentum(alpha=0.5),)
    """

    name: ClassVar[str] = "client_momentum"
    family: ClassVar[str] = "drift correction"
    # Their clients receive no common model of which an update would be the difference.
    refuses: ClassVar[tuple[str, ...]] = ("fedpac", "fedfomo", "apple", "pfedhn", "hypcluster")
    alpha: float = 0.1

    def __post_init__(self):
        if not 0 < self.alpha <= 1:
            raise BadInput(f"client_momentum: alpha is above 0 and at most 1, not {self.alpha}")

    def server_init(self, r):
        keys = r.shared & r.net.params
        return {self.name: {k: torch.zeros_like(v) for k, v in r.net.tree().items() if k in keys}}

    def grads(self, g, s):
        delta = s.down.get(self.name, {})
        return {
            k: self.alpha * v + (1 - self.alpha) * delta[k] if k in delta else v
            for k, v in g.items()
        }

    def finish(self, s):
        way = {k: s.travel.get(k, 0.0) for k in s.down.get(self.name, {})}
        return {self.name: {k: torch.tensor(v, dtype=torch.float64) for k, v in way.items()}}

    def aggregate(self, r):
        x, mean, way = r.server["model"], r.mean("model"), r.mean(self.name)
        return {
            self.name: {
                k: (x[k] - mean[k]) / way[k] if way[k] > 0 else torch.zeros_like(old)
                for k, old in r.server[self.name].items()
            }
        }


@register
def FedCM(alpha: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with uniform weights + ClientMomentum (Xu et al., 2021); see `client_momentum`.

    >>> FedCM().weighting
    'uniform'
    """
    return FedAvg(weighting="uniform", server_lr=server_lr) + ClientMomentum(alpha)
