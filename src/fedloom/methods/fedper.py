"""FedPer: a shared body under a personal head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.phase import Phase, tuning
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """Personalization layers (Arivazhagan et al., 2019).

    Each round, the model being a body under a head::

        client i  trains body and its own head together for E epochs
        server    body <- sum_i n_i body_i / sum_i n_i

    Hyper-parameters: `shared`, a pattern of what is averaged: everything but the head;
    `adapt_epochs` 0: head-only epochs before the final test (10 in FedCR's tables).

    Deviations: none; the paper's number of personal layers is the choice of `shared`.

    Leaves the client: the body.

    >>> FedPer().shared
    '* !head.*'
    """

    name: ClassVar[str] = "fedper"
    family: ClassVar[str] = "personal layers"
    shared: str = "* !head.*"
    adapt_epochs: int = 0

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning("head.*", self.adapt_epochs)
