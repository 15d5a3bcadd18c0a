"""DANN: features from which no discriminator can tell which client they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.net import Net
from fedloom.core.site import Site
from fedloom.core.term import Batch, Term
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.models.layers import perceptron


@register
@dataclass(frozen=True)
class DANN(Term):
    """Domain-adversarial training with clients as domains (Ganin et al., JMLR 2016, section 4.2).

    D is a discriminator beside the network and f the network up to its representation. In each step
    at client i both players move at once::

        L_d       = CE(D(f(x)), i)
        D         <- D - lr grad L_d                                               eq. (15)
        f         <- f - lr (grad CE(x, y) - lam grad L_d)                         eq. (13)
        server    averages D with the model

    This is done by a layer that reverses the gradient: forward it is the identity, backward it
    multiplies by -lam (eq. 16, 17).

    Hyper-parameters: `lam` 0.1, from FedBR's grid {0.01, 0.1, 1}; `width` 256, of the hidden layers
    of a discriminator with three linear layers (FedBR).

    Deviations: lam is constant; the paper raises it from 0 to 1 over the training, whose length a
    client does not know here. As in the paper's experiments D learns at the full rate, whatever lam
    is. FedBR's code alternates between the players, so that only every second step trains the
    model; here every step does. A newcomer is none of the clients that D tells apart: there the
    term adds nothing.

    Leaves the client: the discriminator, in the model.

    >>> DANN(lam=1.0)
    DANN(lam=1.0, width=256)
    """

    name: ClassVar[str] = "dann"
    family: ClassVar[str] = "representation"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    keeps: ClassVar[Literal["personal", "shared"]] = "shared"
    # Its hyper-network generates the network's own tensors only, and D would be missing.
    refuses: ClassVar[tuple[str, ...]] = ("pfedhn",)
    # FedBR's grid.
    tunable: ClassVar[Tunable] = {"lam": Log(1e-2, 1)}
    lam: float = 0.1
    width: int = 256

    def __post_init__(self) -> None:
        if self.lam < 0 or self.width < 1:
            raise BadInput(
                f"dann: lam is at least 0 and width at least 1, not {self.lam} and {self.width}"
            )

    def extend(self, net: Net, clients: int) -> None:
        d = net.shape_of(net.representation).numel()
        net.add(self.name, perceptron(d, self.width, self.width, clients), reads=None)

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if s.newcomer:
            return 0.0
        z = b.out[s.net.representation].flatten(1)
        guess = s.net.stage(s.w, self.name, _reverse_gradient(z, self.lam), train=s.modes)
        domain = torch.full((len(z),), s.cid, device=z.device)
        return F.cross_entropy(guess, domain)  # L_d


class _ReverseGradient(torch.autograd.Function):
    """The identity, whose gradient is -lam times what arrives (eq. 16, 17)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, lam: float) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.lam = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return -ctx.lam * g, None


_reverse_gradient: Callable[[Tensor, float], Tensor] = _ReverseGradient.apply
"""torch leaves `apply` without types."""
