"""APFL: every client predicts with a mixture of the global and a model of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.net import METHOD, stage_of
from fedloom.core.sgd import SGD
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """Adaptive personalized federated learning (Deng et al., 2020, Algorithm 1).

    Beside the global w client i keeps v_i and alpha_i; its personal model is the mixture
    m = alpha v + (1 - alpha) w. Each local step, all gradients at the values before it::

        w         w - lr grad f(w)                                          FedAvg's part
        v         v - lr alpha grad f(m)                                    the gradient in v
        alpha     alpha - lr <grad f(m), v - w>, kept in [0, 1]             the gradient in alpha
        server    w <- mean over the cohort, all clients alike
        at a test alpha v + (1 - alpha) w, with the w just received

    Hyper-parameters: `alpha` 0.5, where it begins (FedPAC: 0.25 of {0.25, 0.5, 0.75});
    `learn_alpha` False: it stays there.

    Deviations: alpha moves at every step; the published code moves it once a round. v is trained by
    the run's optimiser, like w. The mixture has BatchNorm statistics of its own, kept beside v, so
    w is FedAvg's to the bit where neither layers nor terms draw. v_i begins as the first global
    model the client receives. Terms see w and the mixture in turn: MeanRegularization with mu < 1
    runs one mean over both. Gradient corrections are for w alone; the mixture reads a copy of what
    a term trains itself (FedBR's projection).

    Leaves the client: w; never v or alpha.

    >>> APFL(alpha=0.25, learn_alpha=False).alpha
    0.25
    """

    name: ClassVar[str] = "apfl"
    family: ClassVar[str] = "personal model"
    weighting: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.5
    learn_alpha: bool = True

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise BadInput(f"apfl: alpha must be between 0 and 1, got {self.alpha:g}")

    def client_init(self, s):
        apart = {t.name for t in self.terms if not t.train}
        v = {k: x for k, x in s.start.items() if s.net.owner[stage_of(k)] not in apart}
        return {**super().client_init(s), self.name: {**v, "alpha": torch.tensor(self.alpha)}}

    def _mixture(self, s):
        """alpha v + (1 - alpha) w at the parameters and v's statistics; a copy of w's tensor where
        a term trains it."""
        mine, mixed = s.own[self.name], {}
        for k, w in s.w.items():
            x = mine.get(k, w.detach().clone())
            blend = k in mine and k in s.net.params
            mixed[k] = torch.lerp(w.detach(), x, mine["alpha"].to(x)) if blend else x
        return mixed

    def step(self, b, s):
        mine, at_w = s.own[self.name], s.grad(replace(b))  # a copy: terms may change a batch
        mixture = self._mixture(s)
        for k in s.keys:
            mixture[k].requires_grad_()
        g, alpha = s.grad(replace(b), mixture, corrected=False), mine["alpha"]
        if self.learn_alpha:
            slope = sum((g[k] * (mine[k] - s.w[k].detach())).sum() for k in s.keys)
            mine["alpha"] = (alpha - s.lr * slope.to(alpha)).clamp(0, 1)
        self._optimiser(s).step([alpha.to(g[k]) * g[k] for k in s.keys])
        s.apply(at_w)

    def _optimiser(self, s):
        """Of v, for this fit; the loop's own moves w."""
        if self.name not in s.memo:
            v, opt = [s.own[self.name][k] for k in s.keys], s.phase.over(s.opt, s.plan.t).opt
            decayed = sum(s.net.owner[stage_of(k)] == METHOD for k in s.keys)
            s.memo[self.name] = SGD(v, opt, decayed)
        return s.memo[self.name]

    def personalize(self, s):
        return {METHOD: self._mixture(s)}
