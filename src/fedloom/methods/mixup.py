"""Mixup: train on convex combinations of a client's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedloom.core.net import Net
from fedloom.core.site import Site
from fedloom.core.term import Batch, Term
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.soft_labels import soft_labels


@register
@dataclass(frozen=True)
class Mixup(Term):
    """Beyond empirical risk minimization (Zhang et al., ICLR 2018, section 2).

    Each local step, pi being a random permutation of the batch and y one-hot::

        lambda ~ Beta(alpha, alpha)
        x~ = lambda x + (1 - lambda) x[pi]
        y~ = lambda y + (1 - lambda) y[pi]
        loss of the method on (x~, y~)

    Hyper-parameters: `alpha` 0.2, as in FedBR (the paper: 0.1 to 0.4 on ImageNet, 1 on CIFAR); 0
    mixes nothing. `per` "batch" draws one lambda for the batch, as the paper's listing and FedBR's
    code do; "pair" draws one for every pair, as the paper's formula may also be read.

    Deviations: none. A client mixes samples of its own batch, never with those of other clients.
    Terms that work class by class go on using the hard labels of x.

    Leaves the client: nothing beyond what the method itself sends.

    >>> Mixup().alpha
    0.2
    """

    name: ClassVar[str] = "mixup"
    family: ClassVar[str] = "extra data"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "it mixes rows with each other, so that a row changes the gradients of others"
    )
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "fedmix", "spherefed")
    # The paper: 0.1 to 1.
    tunable: ClassVar[Tunable] = {"alpha": Log(0.05, 1)}
    alpha: float = 0.2
    per: Literal["batch", "pair"] = "batch"

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadInput(f"mixup: alpha is 0 (no mixing) or positive, not {self.alpha}")

    def extend(self, net: Net, clients: int) -> None:
        if net.not_numbers:
            raise BadInput(f"mixup averages inputs, and this network reads {net.not_numbers}")

    def inputs(self, b: Batch, s: Site) -> None:
        if not self.alpha:
            return
        rng = self._rng(s)
        n = len(b.x)
        pi = torch.from_numpy(rng.permutation(n))
        draws = rng.beta(self.alpha, self.alpha, size=n if self.per == "pair" else 1)
        lam = torch.from_numpy(draws).to(b.x)  # [n] or [1]
        lam_x = lam.reshape(-1, *[1] * (b.x.ndim - 1))
        lam_y = lam[:, None]
        y = soft_labels(b.target, s.data.classes, b.x)
        b.target = lam_y * y + (1 - lam_y) * y[pi]
        b.x = lam_x * b.x + (1 - lam_x) * b.x[pi]

    def _rng(self, s: Site) -> np.random.Generator:
        """Random numbers for the model in training.

        A second model has its own, so that its draws do not change the first one's.
        """
        key = (self.name, s.training)
        if key not in s.memo:
            s.memo[key] = np.random.default_rng(s.gen(key).initial_seed())
        rng: np.random.Generator = s.memo[key]
        return rng
