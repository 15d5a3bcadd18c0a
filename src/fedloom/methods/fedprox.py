"""FedProx: FedAvg with a pull towards the model that was received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.site import Site
from fedloom.core.term import AtOnce, Term
from fedloom.core.tree import Tree
from fedloom.core.tunable import Log, Tunable
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

    Deviations: the penalty's gradient is added to the loss's gradient, instead of the penalty to
    the loss. The step is the same and needs no graph over all weights; the logged loss does not
    contain the penalty.

    Leaves the client: nothing beyond what the method itself sends.

    >>> (FedAvg() + Proximal(mu=0.1)).terms
    (Proximal(mu=0.1),)
    """

    name: ClassVar[str] = "proximal"
    family: ClassVar[str] = "drift correction"
    # The paper's grid.
    tunable: ClassVar[Tunable] = {"mu": Log(1e-3, 1)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("grads",)
    mu: float = 0.01

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise BadInput(f"proximal: mu is 0 or more, not {self.mu}")

    def grads(self, g: Tree, s: Site) -> Tree:
        corrected = dict(g)
        for k in g:
            if k in s.shared:
                corrected[k] = g[k].add(s.w[k] - s.received[k], alpha=self.mu)
        return corrected


@register
def FedProx(mu: float = 0.01) -> Method:
    """FedAvg + Proximal (Li et al., MLSys 2020); see `proximal`.

    >>> FedProx(mu=1.0).terms
    (Proximal(mu=1.0),)
    """
    return FedAvg() + Proximal(mu)
