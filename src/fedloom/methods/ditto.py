"""Ditto: a personal model beside the global one, tied to it by a spring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedprox import Proximal


@register
@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """Fairness and robustness through personalization (Li et al., ICML 2021, Algorithm 1).

    v_i is the personal model of client i. Each round::

        client i  w_i <- E epochs of SGD from the received w                   as in FedAvg
                  v_i <- epochs of SGD on F_i(v) + lam/2 ||v - w||^2           w as received
        server    w <- sum_i n_i w_i / sum_i n_i
        at a test v_i

    Hyper-parameters: `lam` 1.0 (FedPAC, from {0.1, 1, 10}; FedCR: 0.1 on EMNIST, 0.001 on FMNIST
    and CIFAR-100, 0.01 elsewhere); `personal_epochs` None trains v_i for as many epochs as w_i.

    Deviations: the published code weighs all clients equally (`weighting="uniform"`) and steps v
    and w on the same batch. v_i begins as the first global model that the client receives. Terms
    that add to the objective (MeanRegularization, MOON's contrast) shape both models; terms that
    correct gradients (FedProx, SCAFFOLD) shape only the global one.

    Leaves the client: the global model's update; never v_i.

    >>> Ditto(lam=0.1).lam
    0.1
    """

    name: ClassVar[str] = "ditto"
    family: ClassVar[str] = "personal model"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    personal_model: ClassVar[bool] = True
    # From FedCR's smallest to the end of FedPAC's grid.
    tunable: ClassVar[Tunable] = {"lam": Log(1e-3, 10)}
    lam: float = 1.0
    personal_epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0 or (self.personal_epochs or 0) < 0:
            raise BadInput("ditto: lam and personal_epochs are 0 or more")

    @property
    def gradient_phases(self) -> tuple[Phase, ...]:
        """Those of w, and that of v."""
        return (*self.phases, self._personal_phase)

    @property
    def _personal_phase(self) -> Phase:
        return Phase("personal", epochs=self.personal_epochs)

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: s.start}

    def local(self, s: Site) -> None:
        of_objective = [term for term in s.terms if not term.overrides("grads")]
        terms = (*of_objective, Proximal(self.lam))  # lam/2 ||v - w||^2
        v = s.own[self.name]
        s.own[self.name] = s.fit(self._personal_phase, w=v, terms=terms)
        super().local(s)

    def personalize(self, s: Site) -> State:
        return {METHOD: s.own[self.name]}
