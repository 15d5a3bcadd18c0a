"""FedDecorr: keep the dimensions of the representation from collapsing onto each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register

FLOOR = 1e-8
"""Added to a variance before its root is divided by: a dimension may be constant in a batch."""


@register
@dataclass(frozen=True)
class FedDecorr(Term):
    """Against dimensional collapse (Shi et al., ICLR 2023).

    With z the representations of a batch, d their width, in every local step::

        z^    = (z - mean z) / std z                per dimension, over the batch
        K     = z^' z^ / n                          the correlation matrix [d, d]
        loss += beta / d^2 ||K||_F^2

    Hyper-parameters: `beta` 0.1 (the paper and FedBR), which was tuned with the published code
    (`published=true`), whose term is about n times as large: with the formula above it is weak.

    Deviations: the published code, which FedBR ran, leaves out the diagonal (a constant d) and
    does not divide z^' z^ by n, then the squares by n (`published=True`). z is the network's raw
    representation. A constant dimension correlates with nothing; a batch of one has no
    correlations and adds no loss.

    Leaves the client: nothing more.

    >>> FedDecorr().beta
    0.1
    """

    name: ClassVar[str] = "feddecorr"
    family: ClassVar[str] = "representation"
    beta: float = 0.1
    published: bool = False

    def __post_init__(self):
        if self.beta < 0:
            raise BadInput(f"feddecorr: beta is 0 or more, not {self.beta}")

    def loss(self, b, s):
        if not self.beta or len(b.x) < 2:
            return 0.0
        return self.beta * correlation(b.out[s.net.representation].flatten(1), self.published)


def correlation(z, published=False):
    """Mean square of the correlations between the columns of z [n, d].

    >>> import torch
    >>> z = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    >>> round(float(correlation(z)), 4)
    1.0
    """
    n, d = z.shape
    z = z - z.mean(0)
    z = z / (z.var(0, correction=int(published)) + FLOOR).sqrt()
    gram = z @ z.T if n < d else z.T @ z  # of the same norm
    if not published:
        return (gram / n).square().sum() / d**2
    off_diagonal = gram.square().sum() - z.square().sum(0).square().sum()
    return off_diagonal / max(d * (d - 1), 1) / n
