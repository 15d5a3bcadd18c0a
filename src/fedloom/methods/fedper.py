"""FedPer: a shared body under a personal head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.phase import Phase, tuning
from fedloom.core.tunable import Integer, Tunable
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """Personalization layers (Arivazhagan et al., 2019).

    The model is a body (everything below the last layer) under a head. Each round::

        client i  trains body and its own head together for E epochs
        server    body <- sum_i n_i body_i / sum_i n_i

    Hyper-parameters: `shared`, the pattern of tensors that are averaged; by default everything but
    the head. `adapt_epochs` 0: how many epochs the head alone is trained before the final test (10
    in FedCR's tables).

    Deviations: none. The paper's number of personal layers is chosen by `shared`.

    Leaves the client: the body.

    >>> FedPer().shared
    '* !head.*'
    """

    name: ClassVar[str] = "fedper"
    family: ClassVar[str] = "personal layers"
    tunable: ClassVar[Tunable] = {"adapt_epochs": Integer(0, 10)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    shared: str = "* !head.*"
    adapt_epochs: int = 0

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning("head.*", self.adapt_epochs)
