"""FedDecorr: keep the dimensions of the representation from collapsing onto each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedloom.core.site import Site
from fedloom.core.term import Batch, Term
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register

FLOOR = 1e-8
"""Added to a variance before its root is divided by: a dimension may be constant in a batch."""


@register
@dataclass(frozen=True)
class FedDecorr(Term):
    """Against dimensional collapse (Shi et al., ICLR 2023).

    z [n, d] are the representations of a batch. In every local step::

        z^    = (z - mean z) / std z                per dimension, over the batch
        K     = z^' z^ / n                          the correlation matrix [d, d]
        loss += beta / d^2 ||K||_F^2

    Hyper-parameters: `beta` 0.1 (the paper and FedBR). It was tuned with the published code
    (`published=true`), whose term is about n times as large; with the formula above it is weak.

    Deviations: the published code, which FedBR ran, leaves out the diagonal of K (a constant d),
    and divides by n after squaring instead of before (`published=True`). z is the network's raw
    representation. A dimension that is constant in a batch correlates with no other; a batch of one
    row has no correlations and adds no loss.

    Leaves the client: nothing more.

    >>> FedDecorr().beta
    0.1
    """

    name: ClassVar[str] = "feddecorr"
    family: ClassVar[str] = "representation"
    tunable: ClassVar[Tunable] = {"beta": Log(1e-2, 1)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "it correlates the features of a batch, so that a row changes the gradients of others"
    )
    beta: float = 0.1
    published: bool = False

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise BadInput(f"feddecorr: beta is 0 or more, not {self.beta}")

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if not self.beta or len(b.x) < 2:
            return 0.0
        z = b.out[s.net.representation].flatten(1)
        return self.beta * correlation(z, self.published)


def correlation(z: Tensor, published: bool = False) -> Tensor:
    """Mean square of the correlations between the columns of z [n, d]; as the published code has
    it, without the diagonal and about n times as large.

    >>> import torch
    >>> z = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    >>> round(float(correlation(z)), 4)
    1.0
    """
    n, d = z.shape
    z = z - z.mean(0)
    std = (z.var(0, correction=int(published)) + FLOOR).sqrt()
    z = z / std
    # z z' [n, n] and z' z [d, d] have the same Frobenius norm; the smaller one is computed.
    gram = z @ z.T if n < d else z.T @ z
    if not published:
        return (gram / n).square().sum() / d**2
    diagonal = z.square().sum(0)  # of z' z
    off_diagonal = gram.square().sum() - diagonal.square().sum()
    return off_diagonal / max(d * (d - 1), 1) / n
