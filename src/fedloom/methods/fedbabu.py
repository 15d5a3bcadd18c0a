"""FedBABU: the body learns under a head that stays as it was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.phase import Phase, tuning
from fedloom.core.tunable import Choice, Integer, Tunable
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedBABU(Method):
    """Body aggregation, body update (Oh et al., ICLR 2022, Algorithm 1).

    ::

        start     one random head for everybody, fixed during all rounds
        client i  body_i <- E epochs of SGD from the received body, head frozen
        server    body <- sum_i n_i body_i / sum_i n_i
        at a test client i: w_i <- `adapt_epochs` epochs of SGD on its own data, from body and head

    Hyper-parameters: `adapt_epochs` 5 (the paper; DBE uses 10); `tune` "*" fine-tunes the whole
    model, "head.*" the head only.

    Deviations: none.

    Leaves the client: the body.

    >>> FedBABU().phases[0].train
    '* !head.*'
    """

    name: ClassVar[str] = "fedbabu"
    family: ClassVar[str] = "personal layers"
    tunable: ClassVar[Tunable] = {"adapt_epochs": Integer(1, 10), "tune": Choice(("*", "head.*"))}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    shared: str = "* !head.*"
    adapt_epochs: int = 5
    tune: str = "*"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase("body", "* !head.*"),)

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning(self.tune, self.adapt_epochs)
