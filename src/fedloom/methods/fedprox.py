"""FedProx: FedAvg with a pull towards the model that was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg


@register
@dataclass(frozen=True)
class Proximal(Term):
    """Adds mu/2 ||w - w_received||^2 to the local objective (Li et al., MLSys 2020).

    Each step::

        g <- g + mu (w - w_received)        on the shared tensors trained in this phase

    Hyper-parameters: `mu` 0.01, from the paper's grid {0.001, 0.01, 0.1, 1}; FedBR tunes over
    {0.001, 0.01, 0.1}.

    Deviations: added as its exact gradient instead of a term of the loss, which is the same step
    without a graph over all weights; the logged loss is therefore without the penalty.

    Leaves the client: nothing more.

    >>> (FedAvg() + Proximal(mu=0.1)).terms
    (Proximal(mu=0.1),)
    """

    name: ClassVar[str] = "proximal"
    family: ClassVar[str] = "drift correction"
    mu: float = 0.01

    def __post_init__(self):
        if self.mu < 0:
            raise BadInput(f"proximal: mu is 0 or more, not {self.mu}")

    def grads(self, g, s):
        return {
            k: v.add(s.w[k] - s.received[k], alpha=self.mu) if k in s.shared else v
            for k, v in g.items()
        }


@register
def FedProx(mu: float = 0.01) -> Method:
    """FedAvg + Proximal (Li et al., MLSys 2020); see `proximal`.

    >>> FedProx(mu=1.0).terms
    (Proximal(mu=1.0),)
    """
    return FedAvg() + Proximal(mu)
