"""FedRep: first the personal head, then the shared body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.phase import Phase, tuning
from fedloom.core.tunable import Integer, Tunable
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """Shared representations with personal heads (Collins et al., ICML 2021, Algorithm 1).

    Each round::

        client i  head: `head_epochs` epochs, body frozen
                  body: `body_epochs` epochs, head frozen
        server    body <- sum_i n_i body_i / sum_i n_i
        at a test head: `adapt_epochs` epochs on the received body

    Hyper-parameters: `head_epochs` 4 and `body_epochs` 1, as in DualFed's table (FedCR: 9 and 1).
    `adapt_epochs` 10 is FedCR's protocol; 0 tests the head as the last round left it. `head_lr`
    None: the head is trained with the run's learning rate, as the body is.

    Deviations: the paper weights clients equally (`weighting="uniform"`), which makes no difference
    where all have equally many samples. In the published code, a client that takes part for the
    first time in a later round begins with the mean of the others' heads.

    Leaves the client: the body.

    >>> [p.name for p in FedRep().phases]
    ['head', 'body']
    """

    name: ClassVar[str] = "fedrep"
    family: ClassVar[str] = "personal layers"
    tunable: ClassVar[Tunable] = {"head_epochs": Integer(1, 10), "adapt_epochs": Integer(0, 10)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    shared: str = "* !head.*"
    head_epochs: int = 4
    body_epochs: int = 1
    adapt_epochs: int = 10
    head_lr: float | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("head", "head.*", epochs=self.head_epochs, lr=self.head_lr),
            Phase("body", "* !head.*", epochs=self.body_epochs),
        )

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning("head.*", self.adapt_epochs, self.head_lr)
