"""Mixup: train on convex combinations of a client's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.soft_labels import soft_labels


@register
@dataclass(frozen=True)
class Mixup(Term):
    """Beyond empirical risk minimization (Zhang et al., ICLR 2018, section 2).

    Each local step, pi a random permutation of the batch::

        lambda ~ Beta(alpha, alpha)
        x~ = lambda x + (1 - lambda) x[pi]
        y~ = lambda y + (1 - lambda) y[pi]         one-hot
        loss of the method on (x~, y~)

    Hyper-parameters: `alpha` 0.2 (the paper: 0.1 to 0.4 on ImageNet, 1 on CIFAR; FedBR: 0.2); 0
    mixes nothing. `per` "batch": one lambda for the batch, as the paper's listing and FedBR's code
    have it; "pair": one for every pair, as the paper's formula may also be read.

    Deviations: none. Clients mix within their own batches, never with each other. Class-wise terms
    go on using the hard labels of x.

    Leaves the client: nothing more.

    >>> Mixup().alpha
    0.2
    """

    name: ClassVar[str] = "mixup"
    family: ClassVar[str] = "extra data"
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "fedmix", "spherefed")
    alpha: float = 0.2
    per: Literal["batch", "pair"] = "batch"

    def __post_init__(self):
        if self.alpha < 0:
            raise BadInput(f"mixup: alpha is 0 (no mixing) or positive, not {self.alpha}")

    def extend(self, net, clients):
        if not net.input_dtype.is_floating_point:
            raise BadInput("mixup averages inputs, and this network reads token ids")

    def inputs(self, b, s):
        if not self.alpha:
            return
        at = (self.name, s.training)  # a second model's draws must not move the first one's
        if at not in s.memo:
            s.memo[at] = np.random.default_rng(s.gen(at).initial_seed())
        draw, n = s.memo[at], len(b.x)
        partner = torch.from_numpy(draw.permutation(n))
        lam = draw.beta(self.alpha, self.alpha, size=n if self.per == "pair" else 1)
        lam = torch.from_numpy(lam).to(b.x)[:, None]  # [n, 1] or [1, 1]
        y = soft_labels(b.target, s.data.classes, b.x)
        b.target = lam * y + (1 - lam) * y[partner]
        lam = lam.reshape(-1, *[1] * (b.x.ndim - 1))
        b.x = lam * b.x + (1 - lam) * b.x[partner]
