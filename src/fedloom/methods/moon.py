"""MOON: contrast against the global and the previous local representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.net import stage_of
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg
from fedloom.ops.contrastive import pair_contrast


@register
@dataclass(frozen=True)
class ModelContrast(Term):
    """MOON's model-contrastive loss (Li et al., CVPR 2021, equation 3).

    With z the representation of the model in training, z_g of the received one and z_p of the
    client's model at the end of its last round::

        loss += mu * mean -log e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau})

    On a client's first round z_p = z_g and the term has no gradient.

    Hyper-parameters: `mu` 1.0 from the paper's grid {0.1, 1, 5, 10}; `tau` 0.5.

    Deviations: z is the network's raw representation (before anything a term inserts). The paper's
    networks end in a projection head below the classifier; give the network one to have it.

    Leaves the client: nothing more. The previous extractor is kept by the client.

    >>> (FedAvg() + ModelContrast(mu=5.0)).terms
    (ModelContrast(mu=5.0, tau=0.5),)
    """

    name: ClassVar[str] = "model_contrast"
    family: ClassVar[str] = "drift correction"
    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self):
        if self.mu < 0 or self.tau <= 0:
            raise BadInput(
                f"model_contrast: mu is 0 or more and tau above 0, not {self.mu} and {self.tau}"
            )

    def loss(self, b, s):
        stage = s.net.representation
        previous = s.own.get(self.name) or s.received
        with torch.no_grad():
            z_global, z_previous = (
                s.net(w, b.x, want=stage)[stage].flatten(1) for w in (s.received, previous)
            )
        z = b.out[stage].flatten(1)
        return self.mu * pair_contrast(z, z_global, z_previous, 1 / self.tau)  # eq. (3)

    def finish(self, s):
        extractor = set(s.net.path_to(s.net.representation))
        s.own[self.name] = {k: v for k, v in s.w.items() if stage_of(k) in extractor}
        return {}


@register
def MOON(mu: float = 1.0, tau: float = 0.5) -> Method:
    """FedAvg + ModelContrast (Li et al., CVPR 2021); see `model_contrast`.

    >>> MOON().terms
    (ModelContrast(mu=1.0, tau=0.5),)
    """
    return FedAvg() + ModelContrast(mu, tau)
