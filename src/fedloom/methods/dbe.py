"""DBE: detach each client's representation bias, regularise the rest to a common mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch.nn.functional as F

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.method_tools import broadcast_once
from fedloom.method_tools.network_kind import network_kind
from fedloom.methods import register
from fedloom.models.layers import Translation
from fedloom.ops.noise import perturb

STRENGTHS = {"cnn": (50.0, 1.0), "batch_norm": (1.0, 0.1), "text": (0.1, 1.0), "other": (1.0, 1.0)}
"""kappa and mu by the kind of network (C.2)."""


@register
@dataclass(frozen=True)
class PRBM(Term):
    """Personalized representation bias memory (DBE, Zhang et al., NeurIPS 2023, section 4.2).

    z = f(x) + z_p (eq. 4): z_p, zero at the start, is trained with the model and stays with the
    client; it is never reset and never decayed.

    Hyper-parameters: `at`, the stage it follows: None, the network's representation, or a place
    of Table 1, "conv2" of `cnn4(stages=fine)`; z_p has an entry per channel and position then.

    Deviations: none. Leaves the client: nothing.

    >>> PRBM(at="conv2").at
    'conv2'
    """

    name: ClassVar[str] = "prbm"
    family: ClassVar[str] = "representation"
    at: str | None = None

    def extend(self, net, clients):
        stage = self.at or net.representation
        if stage == net.logits:
            raise BadInput(f"prbm: at={stage!r} is the last stage; name an earlier one")
        net.insert(self.name, Translation(net.shape_of(stage)), after=stage)  # eq. (4)


@register
@dataclass(frozen=True)
class MeanRegularization(Term):
    """Regularises the mean of the representation to a consensual mean (DBE, section 4.3).

    ::

        before FL  every client trains one epoch without DBE and reports the mean of f(x) over
                   its data; the server's z_g = sum_i n_i/n mean_i; the weights are thrown away
        each step  m <- (1 - mu) m + mu mean_batch f(x), m = 0 at the start of a round    eq. (9)
                   loss += kappa * MSE(m, z_g), gradient by the batch's share of m only   eq. (8)

    Hyper-parameters: `kappa`, `mu` None: by the kind of network, 50 and 1.0 (CNNs), 1 and 0.1
    (BatchNorm networks; the paper's ResNet-18), 0.1 and 1.0 (text), 1 and 1.0 (others, not in the
    paper). `at` the stage, None: the representation. `noise_scale`, `noise_weight`: the paper's s
    and q (Table 3) of Gaussian noise on the reported means.

    Deviations: the published code halves the MSE (`half=True`), reports the running mean m of
    that first training instead of a clean pass over the data (`mean="running"`; with mu = 1 that
    is the mean of the last batch) and trains then as long as in a round (`init_epochs=None`).
    Phases that state their own epochs (FedRep's) keep them there.

    Leaves the client: the mean of its representations, once. z_g comes to it once, and is kept.

    >>> MeanRegularization(kappa=5.0).before
    ('mean',)
    """

    name: ClassVar[str] = "mean_regularization"
    family: ClassVar[str] = "representation"
    before: ClassVar[tuple[str, ...]] = ("mean",)
    gathers: ClassVar[bool] = True
    kappa: float | None = None
    mu: float | None = None
    at: str | None = None
    mean: Literal["data", "running"] = "data"
    half: bool = False
    init_epochs: int | None = 1
    noise_scale: float = 0.0
    noise_weight: float = 0.0

    def special(self, s):
        if self.init_epochs is not None:
            s.opt = replace(s.opt, epochs=self.init_epochs, steps=None)
        running = self.mean == "running"
        s.terms = (self,) if running else ()  # without a z_g it only follows m
        s.method.local(s)  # Alg. 1 line 2
        stage = self.at or s.net.representation
        z = s.memo[self.name, "model"] if running else s.scan(stage).mean(0)
        noise = (self.noise_scale, self.noise_weight, s.gen("noise"))
        return {self.name: {"mean": perturb(z, *noise)}}

    def send(self, r, cid):
        return broadcast_once.send(r, self.name, cid)

    def loss(self, b, s):
        if (at := (self.name, s.training)) not in s.memo:
            s.memo[at], s.memo[self.name] = 0.0, self._strengths(s.net)
        kappa, mu = s.memo[self.name]
        m = mu * b.out[self.at or s.net.representation].mean(0) + (1 - mu) * s.memo[at]  # eq. (9)
        s.memo[at] = m.detach()
        z_g = broadcast_once.received(s, self.name)
        gap = F.mse_loss(m, z_g["mean"]) if z_g else 0.0
        return kappa * (gap / 2 if self.half else gap)  # eq. (8)

    def finish(self, s):
        return broadcast_once.keep(s, self.name)

    def weight(self, r, cid, up):
        return float(up.n)  # Alg. 1 line 3, also where the method weighs clients alike

    def aggregate(self, r):
        first = r.plan.kind == "special"
        return {
            self.name: broadcast_once.start(r, r.mean(self.name))
            if first
            else broadcast_once.mark_holders(r, self.name)
        }

    def _strengths(self, net):
        usual = STRENGTHS[network_kind(net)]
        return [v if x is None else x for x, v in zip((self.kappa, self.mu), usual, strict=True)]


@register
def DBE(
    kappa: float | None = None,
    mu: float | None = None,
    at: str | None = None,
    mean: Literal["data", "running"] = "data",
    half: bool = False,
    init_epochs: int | None = 1,
    noise_scale: float = 0.0,
    noise_weight: float = 0.0,
) -> tuple[Term, ...]:
    """Domain bias eliminator (Zhang et al., NeurIPS 2023): PRBM + MeanRegularization.

    Goes on any method; see `prbm` and `mean_regularization`, which also work alone (Table 2).
    `half=true, mean=running, init_epochs=none` are the published code's readings.

    >>> [term.name for term in DBE(kappa=50.0)]
    ['prbm', 'mean_regularization']
    """
    by = (kappa, mu, at, mean, half, init_epochs, noise_scale, noise_weight)
    return PRBM(at), MeanRegularization(*by)
