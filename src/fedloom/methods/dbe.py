"""DBE: detach each client's representation bias, regularise the rest to a common mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fedloom.core.term import Term
from fedloom.methods import register
from fedloom.ops.noise import perturb


class Translation(nn.Module):
    """Adds one trainable vector to every representation, zero at the start."""

    def __init__(self, shape):
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(shape))

    def forward(self, z):
        return z + self.vector


@register
@dataclass(frozen=True)
class PRBM(Term):
    """Personalized representation bias memory (DBE, Zhang et al., NeurIPS 2023, section 4.2).

    ::

        z = f(x) + z_p                      eq. (4): z_p is trained with the model, stays with the
                                            client, is never reset and never decayed

    Hyper-parameters: `at`, the stage it follows: None is the network's representation (before
    the last layer), "conv2" of `cnn4(stages=fine)` a position of the paper's Table 1; z_p then
    has an entry per channel and position.

    Deviations: none. The published code trains z_p with a second optimiser of the same rate.

    Leaves the client: nothing.

    >>> PRBM(at="conv2").at
    'conv2'
    """

    name: ClassVar[str] = "prbm"
    at: str | None = None

    def extend(self, net, clients):
        stage = self.at or net.representation
        net.insert(self.name, Translation(net.shape_of(stage)), after=stage)


@register
@dataclass(frozen=True)
class MeanRegularization(Term):
    """Regularises the mean of the representation to a consensual mean (DBE, section 4.3).

    ::

        before FL  every client trains one epoch without DBE and reports the mean of f(x) over
                   its data; the server's z_g = sum_i n_i/n mean_i; the weights are thrown away
        each step  m <- (1 - mu) m + mu mean_batch f(x), m = 0 at the start of a round    eq. (9)
                   loss += kappa * MSE(m, z_g)                                            eq. (8)

    The gradient flows through the batch's share of m only.

    Hyper-parameters: `kappa`, `mu` None: by the network's family, 50 and 1.0 (CNNs), 1 and 0.1
    (BatchNorm networks; the paper's ResNet-18), 0.1 and 1.0 (text), 1 and 1.0 (others, not in the
    paper). `at` the stage, None: the representation. `noise_scale`, `noise_weight`: the paper's s
    and q (Table 3) of Gaussian noise on the reported means.

    Deviations: the published code halves the MSE (`half=True`) and reports the running mean m of
    that first training instead of a clean pass over the data (`mean="running"`; with mu = 1 that
    is the mean of the last batch).

    Leaves the client: the mean of its representations, once.

    >>> MeanRegularization(kappa=5.0).before
    ('mean',)
    """

    name: ClassVar[str] = "mean_regularization"
    before: ClassVar[tuple[str, ...]] = ("mean",)
    kappa: float | None = None
    mu: float | None = None
    at: str | None = None
    mean: Literal["data", "running"] = "data"
    half: bool = False
    noise_scale: float = 0.0
    noise_weight: float = 0.0

    def stage(self, net):
        return self.at or net.representation

    def strengths(self, net):
        """kappa and mu, by the network's family where they are not given."""
        kappa, mu = 1.0, 1.0
        if net.input_dtype == torch.int64:
            kappa = 0.1
        elif net.match("@bn"):
            mu = 0.1
        elif any(isinstance(m, nn.Conv2d) for m in net.modules()):
            kappa = 50.0
        return kappa if self.kappa is None else self.kappa, mu if self.mu is None else self.mu

    def server_init(self, r):
        return {self.name: {"mean": torch.zeros(r.net.shape_of(self.stage(r.net)))}}

    def special(self, s):
        s.opt = replace(s.opt, epochs=1, steps=None)  # Alg. 1 line 2: one epoch without DBE
        if self.mean == "running":
            s.terms = (replace(self, kappa=0.0),)
        s.method.local(s)
        clean = self.mean == "data"
        found = s.scan(self.stage(s.net)).mean(0) if clean else s.memo[self.name, "model"]
        noisy = perturb(found, self.noise_scale, self.noise_weight, s.gen("noise"))
        return {self.name: {"mean": noisy}}

    def loss(self, b, s):
        at = (self.name, s.training)
        if at not in s.memo:
            s.memo[at], s.memo[self.name] = 0.0, self.strengths(s.net)
        kappa, mu = s.memo[self.name]
        running = mu * b.out[self.stage(s.net)].mean(0) + (1 - mu) * s.memo[at]  # eq. (9)
        s.memo[at] = running.detach()
        return (kappa / 2 if self.half else kappa) * F.mse_loss(running, s.down[self.name]["mean"])

    def aggregate(self, r):
        return {self.name: r.mean(self.name)} if r.plan.kind == "special" else {}  # Alg. 1 line 3


@register
def DBE(
    kappa: float | None = None,
    mu: float | None = None,
    at: str | None = None,
    mean: Literal["data", "running"] = "data",
    half: bool = False,
    noise_scale: float = 0.0,
    noise_weight: float = 0.0,
) -> tuple[Term, ...]:
    """Domain bias eliminator (Zhang et al., NeurIPS 2023): PRBM + MeanRegularization.

    Goes on any method: `fedavg + dbe`, `scaffold + dbe(kappa=1)`. See `prbm` and
    `mean_regularization`, which also work alone (Table 2). `half=true, mean=running` are the
    published code's readings.

    >>> [term.name for term in DBE(kappa=50.0)]
    ['prbm', 'mean_regularization']
    """
    regularise = MeanRegularization(kappa, mu, at, mean, half, noise_scale, noise_weight)
    return PRBM(at), regularise
