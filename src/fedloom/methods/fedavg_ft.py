"""FedAvg-FT: FedAvg, then every client fine-tunes the result for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.phase import Phase, tuning
from fedloom.core.tunable import Integer, Tunable
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Method):
    """FedAvg with local fine-tuning before the test (a baseline of FedCR and FedPAC).

    ::

        rounds    as FedAvg
        at a test client i: w_i <- `adapt_epochs` epochs of SGD on its own data, from w

    Hyper-parameters: `adapt_epochs` 10 (FedCR's table); `tune` says which keys are fine-tuned, "*"
    the whole model, "head.*" the head only.

    Deviations: FedCR's published code fine-tunes the head only (`tune="head.*"`, which is also what
    the protocol `fedcr` makes of FedAvg); FedPAC's FedAvg-FT tunes for the E epochs of a round
    (`adapt_epochs=5`).

    Leaves the client: the whole model; never the fine-tuned one.

    >>> FedAvgFT(adapt_epochs=5).adapt[0].epochs
    5
    """

    name: ClassVar[str] = "fedavg_ft"
    family: ClassVar[str] = "baseline"
    # FedPAC: 5, FedCR: 10.
    tunable: ClassVar[Tunable] = {"adapt_epochs": Integer(1, 10)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    adapt_epochs: int = 10
    tune: str = "*"

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning(self.tune, self.adapt_epochs)
