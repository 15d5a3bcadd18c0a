"""FedGen: a generator of features, taught by all clients' heads, teaches every client's head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedloom.core.term import Term
from fedloom.core.tree import clone
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.adam import Adam
from fedloom.ops.diversity import sameness


class FeatureGenerator(nn.Module):
    """One-hot labels [n, K] and noise [n, e] to features of a stage's shape."""

    def __init__(self, classes: int, noise: int, hidden: int, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.below = nn.Linear(classes + noise, hidden)
        self.above = nn.Linear(hidden, shape.numel())

    def forward(self, label, noise):
        z = self.above(F.relu(self.below(torch.cat([label, noise], dim=1))))
        return z.view(-1, *self.shape)


@register
@dataclass(frozen=True)
class FedGen(Term):
    """Data-free distillation by a feature generator (Zhu et al., ICML 2021, Algorithm 1).

    The generator G(y, eps), eps ~ N(0, I), imitates what the head h reads. Each round, P(y) and
    a_k(y) = n_ky / sum_j n_jy from the counts of the round's clients::

        client k  loss += alpha E_{y ~ P} CE(h(G(y, eps)), y), from round 2 on       eq. (5)
                  sends its class counts n_ky beside its model
        server    G: `steps` steps of Adam on
                  E_{y ~ P} CE(sum_k a_k(y) h_k(G(y, eps)), y)                       eq. (4)
                  + eta * sameness of G for unlike eps

    Hyper-parameters: `alpha` 1.0; `beta` 0.0: weight of KL(h(G(y, eps)) || prediction) on the
    batch's own labels; `lr` 3e-4; `steps` 50 with `server_batch` 128; `batch` 32; `noise` 32;
    `hidden` 256; `eta` 1.0. The published code: alpha = beta = 10, both times `decay` 0.98 a round.

    Deviations: heads weigh by counts, as in the code; in eq. (4) alike. The code weighs their
    losses, not logits (`ensemble="losses"`), and draws labels uniformly from those held, on the
    server as many as a client's batch. Its generator has BatchNorm; its Adam keeps its moments over
    rounds, with weight decay 1e-2 and a rate that falls by 0.98 a round.

    Leaves the client: class counts, beside the model. The generator comes down every round.

    >>> FedGen().requires
    'head.*'
    """

    name: ClassVar[str] = "fedgen"
    family: ClassVar[str] = "extra data"
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "head.*"
    requires: ClassVar[str] = "head.*"
    # Where clients have no common feature space, no one model on the server, or a fixed head.
    refuses: ClassVar[tuple[str, ...]] = (
        *("fedem", "fedfomo", "apple", "pfedhn", "hypcluster", "spherefed"),
    )
    alpha: float = 1.0
    beta: float = 0.0
    lr: float = 3e-4
    steps: int = 50
    batch: int = 32
    server_batch: int = 128
    noise: int = 32
    hidden: int = 256
    eta: float = 1.0
    decay: float = 1.0
    ensemble: Literal["logits", "losses"] = "logits"

    def __post_init__(self):
        if min(self.batch, self.server_batch, self.noise, self.hidden) < 1:
            raise BadInput("fedgen: batch, server_batch, noise and hidden are 1 or more")
        if self.ensemble not in ("logits", "losses"):
            raise BadInput(f"ensemble is logits or losses, not {self.ensemble!r}")

    def extend(self, net, clients):
        shape, classes = net.shape_of(net.feature), net.shape_of(net.logits)[-1]
        net.tools[self.name] = FeatureGenerator(classes, self.noise, self.hidden, shape)

    def server_init(self, r):
        nobody = torch.zeros(r.net.shape_of(r.net.logits)[-1])
        return {self.name: {**r.net.tools[self.name].state_dict(), "counts": nobody}}

    def _generated(self, net, given, y, gen):
        """Features for labels, and the noise they were made from."""
        generator = {k: v for k, v in given.items() if k != "counts"}
        eps = torch.randn(len(y), self.noise, generator=gen).to(given["counts"])
        label = F.one_hot(y, len(given["counts"])).to(eps)
        return functional_call(net.tools[self.name], generator, (label, eps)), eps

    def loss(self, b, s):
        given, at = s.down[self.name], (self.name, s.training)
        if at not in s.memo:
            s.memo[at] = s.gen(at), bool(given["counts"].any())
        gen, taught = s.memo[at]
        if not taught or self.alpha == self.beta == 0:
            return 0.0
        y = torch.multinomial(given["counts"].cpu(), self.batch, True, generator=gen).to(s.device)
        loss = self.alpha * s.task.loss(self._imagined(s, given, y, gen), y)  # eq. (5)
        if self.beta:
            target = self._imagined(s, given, b.y, gen).detach().softmax(-1)
            log_p = b.out[s.net.logits].log_softmax(-1)
            loss = loss + self.beta * F.kl_div(log_p, target, reduction="batchmean")
        return self.decay ** (s.plan.t - 1) * loss

    def _imagined(self, s, given, y, gen):
        """What the head says of generated features."""
        with torch.no_grad():
            z, _ = self._generated(s.net, given, y, gen)
        return s.net.stage(s.w, s.net.logits, z, train=s.modes)

    def finish(self, s):
        return {self.name: {"counts": s.counts}}

    def aggregate(self, r):
        heads, counts = [up.state["model"] for up in r.ups.values()], r.stack(self.name, "counts")
        held, gen = counts.sum(0), r.gen(self.name)
        given = {**clone(r.server[self.name]), "counts": held}
        adam = Adam([v.requires_grad_() for k, v in given.items() if k != "counts"], self.lr)
        for _ in range(self.steps):
            y = torch.multinomial(held, self.server_batch, True, generator=gen)
            with torch.enable_grad():
                z, eps = self._generated(r.net, given, y, gen)
                logits = torch.stack([r.net.stage(head, r.net.logits, z) for head in heads])
                loss = self._misfit(logits, y, counts) + self.eta * sameness(eps, z)
            adam.step(torch.autograd.grad(loss, adam.params))
        return {self.name: given}

    def _misfit(self, logits, y, counts):
        """Of the clients' heads together, from logits [m, n, K] and counts [m, K]; eq. (4)."""
        share = (counts / counts.sum(0).clamp_min(1))[:, y]  # a_k(y), [m, n]
        if self.ensemble == "logits":
            return F.cross_entropy((share[..., None] * logits).sum(0), y)
        each = torch.stack([F.cross_entropy(g, y, reduction="none") for g in logits])
        return (share * each).sum(0).mean()
