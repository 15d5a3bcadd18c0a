"""FedCM: every local step goes partly where the last global update went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.round import Round
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.site import Site
from fedloom.core.term import Term
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class ClientMomentum(Term):
    """FedCM's client-level momentum (Xu et al., 2021).

    Delta is zero at the start and is sent with the model x. Each round::

        step      v <- alpha g(y) + (1 - alpha) Delta;  y <- y - lr v
        client    sends y and K lr: its number of steps times the learning rate
        server    Delta <- (x - mean y) / (K lr)
                  x <- mean y                       (server_lr: only so far along the way)

    Hyper-parameters: `alpha` 0.1 (the paper's and FedBR's); 1 is FedAvg.

    Deviations: where clients take different numbers of steps, which does not occur in the paper, K
    lr is their mean, for each tensor. Momentum, weight decay and clipping act after the correction
    and are not part of the theory; FedBR's code has momentum 0.9 on top. Only shared parameters are
    corrected.

    Leaves the client: one number per tensor, K lr. Delta comes down, as large as the model.

    >>> (FedAvg() + ClientMomentum(alpha=0.5)).terms
    (ClientMomentum(alpha=0.5),)
    """

    name: ClassVar[str] = "client_momentum"
    family: ClassVar[str] = "drift correction"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_client_noise: ClassVar[str] = (
        "the server divides by the rates that clients send, and noise brings them near 0"
    )
    against_example_noise: ClassVar[str] = ""
    # Their clients do not all receive one model, so a mean of updates has no meaning.
    refuses: ClassVar[tuple[str, ...]] = ("fedpac", "fedfomo", "apple", "pfedhn", "hypcluster")
    tunable: ClassVar[Tunable] = {"alpha": Log(0.02, 1)}
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise BadInput(f"client_momentum: alpha is above 0 and at most 1, not {self.alpha}")

    def server_init(self, r: Round) -> State:
        corrected = r.shared & r.net.params
        delta = {k: torch.zeros_like(v) for k, v in r.net.tree().items() if k in corrected}
        return {self.name: delta}

    def grads(self, g: Tree, s: Site) -> Tree:
        delta = s.down.get(self.name, {})
        v = dict(g)
        for k in g.keys() & delta.keys():
            v[k] = self.alpha * g[k] + (1 - self.alpha) * delta[k]
        return v

    def finish(self, s: Site) -> State:
        """K lr of every corrected tensor."""
        k_lr: Tree = {}
        for k in s.down.get(self.name, {}):
            k_lr[k] = torch.tensor(s.travel.get(k, 0.0), dtype=torch.float64)
        return {self.name: k_lr}

    def aggregate(self, r: Round) -> State:
        x = r.server[METHOD]
        mean_y = r.mean(METHOD)
        mean_k_lr = r.mean(self.name)
        delta: Tree = {}
        for k, old in r.server[self.name].items():
            if mean_k_lr[k] > 0:
                delta[k] = (x[k] - mean_y[k]) / mean_k_lr[k]
            else:  # no client took a step
                delta[k] = torch.zeros_like(old)
        return {self.name: delta}


@register
def FedCM(alpha: float = 0.1, server_lr: float = 1.0) -> Method:
    """FedAvg with uniform weights + ClientMomentum (Xu et al., 2021); see `client_momentum`.

    >>> FedCM().weighting
    'uniform'
    """
    return FedAvg(weighting="uniform", server=ServerOpt(lr=server_lr)) + ClientMomentum(alpha)
