"""DANN: features from which nobody can tell whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.models.layers import perceptron


@register
@dataclass(frozen=True)
class DANN(Term):
    """Domain-adversarial training with clients as domains (Ganin et al., JMLR 2016, section 4.2).

    D is a discriminator beside the network, f the network up to its representation. Each step at
    client i, both players at once::

        L_d       = CE(D(f(x)), i)
        D         <- D - lr grad L_d                                               eq. (15)
        f         <- f - lr (grad CE(x, y) - lam grad L_d)                         eq. (13)
        server    averages D with the model

    by a layer that reverses the gradient: the identity forward, times -lam backward (eq. 16, 17).

    Hyper-parameters: `lam` 0.1, from FedBR's grid {0.01, 0.1, 1}; `width` 256 of a discriminator
    with three linear layers (FedBR).

    Deviations: lam is constant; the paper raises it from 0 to 1 over a training whose length a
    client does not know. As in the paper's experiments D learns at the full rate whatever lam is.
    FedBR's code alternates, so that only every second step trains the model; here every step does.
    A newcomer has no label: at it the term is silent.

    Leaves the client: the discriminator, in the model.

    >>> DANN(lam=1.0)
    DANN(lam=1.0, width=256)
    """

    name: ClassVar[str] = "dann"
    family: ClassVar[str] = "representation"
    keeps: ClassVar[Literal["personal", "shared"]] = "shared"
    refuses: ClassVar[tuple[str, ...]] = ("pfedhn",)  # which makes the network's own tensors only
    lam: float = 0.1
    width: int = 256

    def __post_init__(self):
        if self.lam < 0 or self.width < 1:
            raise BadInput(
                f"dann: lam is at least 0 and width at least 1, not {self.lam} and {self.width}"
            )

    def extend(self, net, clients):
        d = net.shape_of(net.representation).numel()
        net.add(self.name, perceptron(d, self.width, clients), reads=None)

    def loss(self, b, s):
        if s.newcomer:
            return 0.0
        z = _Reversed.apply(b.out[s.net.representation].flatten(1), self.lam)
        guess = s.net.stage(s.w, self.name, z, train=s.modes)
        return F.cross_entropy(guess, torch.full((len(z),), s.cid, device=z.device))


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient is -lam times what arrives."""

    @staticmethod
    def forward(ctx, z, lam):
        ctx.lam = lam
        return z.view_as(z)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None
