"""MOON: contrast against the global and the previous local representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import stage_of
from fedloom.core.site import Site
from fedloom.core.term import Batch, Term
from fedloom.core.tree import State, Tree
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg
from fedloom.ops.contrastive import pair_contrast


@register
@dataclass(frozen=True)
class ModelContrast(Term):
    """MOON's model-contrastive loss (Li et al., CVPR 2021, equation 3).

    Let z be the representation by the model in training, z_g by the received model, and z_p by the
    client's model at the end of its previous round::

        loss += mu * mean -log e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau})

    In a client's first round z_p = z_g, and the term has no gradient.

    Hyper-parameters: `mu` 1.0, from the paper's grid {0.1, 1, 5, 10}; `tau` 0.5.

    Deviations: z is the network's raw representation (before anything that a term inserts). The
    paper's networks have a projection head between representation and classifier; to have one
    here, choose a network with one.

    Leaves the client: nothing beyond what the method itself sends. The client keeps the extractor
    of its previous round.

    >>> (FedAvg() + ModelContrast(mu=5.0)).terms
    (ModelContrast(mu=5.0, tau=0.5),)
    """

    name: ClassVar[str] = "model_contrast"
    family: ClassVar[str] = "drift correction"
    keeps_what_it_sent: ClassVar[str] = "the next contrast's negative is the extractor it sent"
    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        if self.mu < 0 or self.tau <= 0:
            raise BadInput(
                f"model_contrast: mu is 0 or more and tau above 0, not {self.mu} and {self.tau}"
            )

    def loss(self, b: Batch, s: Site) -> Tensor:
        previous = s.own.get(self.name) or s.received
        z = b.out[s.net.representation].flatten(1)
        with torch.no_grad():
            z_g = _representation(s, s.received, b.x)
            z_p = _representation(s, previous, b.x)
        return self.mu * pair_contrast(z, z_g, z_p, 1 / self.tau)  # eq. (3)

    def finish(self, s: Site) -> State:
        extractor = set(s.net.path_to(s.net.representation))
        s.own[self.name] = {k: v for k, v in s.w.items() if stage_of(k) in extractor}
        return {}


def _representation(s: Site, w: Tree, x: Tensor) -> Tensor:
    stage = s.net.representation
    return s.net(w, x, want=stage)[stage].flatten(1)


@register
def MOON(mu: float = 1.0, tau: float = 0.5) -> Method:
    """FedAvg + ModelContrast (Li et al., CVPR 2021); see `model_contrast`.

    >>> MOON().terms
    (ModelContrast(mu=1.0, tau=0.5),)
    """
    return FedAvg() + ModelContrast(mu, tau)
