"""APFL: every client predicts with a mixture of the global and a model of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import METHOD, stage_of
from fedloom.core.optimizers import Optimizer, make_optimizer
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Linear, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """Adaptive personalized federated learning (Deng et al., 2020, Algorithm 1).

    Beside the global model w, client i keeps a model v_i and a number alpha_i. Its personal model
    is the mixture m = alpha v + (1 - alpha) w. In each local step all gradients are taken before
    anything moves::

        w         w - lr grad f(w)                                          as in FedAvg
        v         v - lr alpha grad f(m)                                    the gradient in v
        alpha     alpha - lr <grad f(m), v - w>, kept in [0, 1]             in a round's first step
        server    w <- mean over the cohort, every client with the same weight
        at a test alpha v + (1 - alpha) w, with the w just received

    Hyper-parameters: `alpha` 0.5 is the value it begins at (FedPAC: 0.25, chosen from {0.25, 0.5,
    0.75}); with `learn_alpha` False it stays at that value. alpha moves once a round, as in the
    paper and its code; `alpha_every="step"` moves it at every step.

    Deviations: the published code mixes outputs instead of weights, adds 0.02 alpha to alpha's
    slope and multiplies that by alpha^2 + (1 - alpha)^2, and moves alpha after v and w. v is
    trained by the run's optimiser, as w is. The mixture has BatchNorm statistics of its own, which
    are kept with v; so w is equal to FedAvg's to the bit, unless layers or terms draw random
    numbers. v_i begins as the first global model that the client receives. A term is asked for the
    gradient at w and for the one at the mixture in turn, so MeanRegularization with mu < 1 runs one
    mean over both. Terms that correct gradients correct w's only. Of tensors that a term trains by
    itself (FedBR's projection) the mixture reads a copy of w's.

    Leaves the client: w; never v or alpha.

    >>> APFL(alpha=0.25, learn_alpha=False).alpha
    0.25
    """

    name: ClassVar[str] = "apfl"
    family: ClassVar[str] = "personal model"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    personal_model: ClassVar[bool] = True
    # FedPAC searches {0.25, 0.5, 0.75}.
    tunable: ClassVar[Tunable] = {"alpha": Linear(0.1, 0.9)}
    weighting: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.5
    learn_alpha: bool = True
    alpha_every: Literal["round", "step"] = "round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise BadInput(f"apfl: alpha must be between 0 and 1, got {self.alpha:g}")
        if self.alpha_every not in ("round", "step"):
            raise BadInput(f"apfl: alpha_every is round or step, not {self.alpha_every!r}")

    @property
    def gradient_phases(self) -> tuple[Phase, ...]:
        """At w and at the mixture."""
        return (*self.phases, *self.phases)

    def client_init(self, s: Site) -> State:
        """v_i and alpha_i; v_i has no copy of the tensors that a term trains by itself."""
        self_training = {term.name for term in self.terms if not term.train}
        v = {k: x for k, x in s.start.items() if s.net.owner[stage_of(k)] not in self_training}
        personal = {**v, "alpha": torch.tensor(self.alpha)}
        return {**super().client_init(s), self.name: personal}

    def step(self, b: Batch, s: Site) -> None:
        personal = s.own[self.name]
        alpha = personal["alpha"]

        # Terms may change a batch, so each gradient gets a copy of it.
        grad_w = s.grad(replace(b))
        mixture = self._mixture(s)
        for k in s.keys:
            mixture[k].requires_grad_()
        grad_m = s.grad(replace(b), mixture, corrected=False)

        if self.learn_alpha and (self.alpha_every == "step" or s.steps == 0):
            slope = self._slope_of_alpha(s, grad_m)
            personal["alpha"] = (alpha - s.lr * slope.to(alpha)).clamp(0, 1)
        grad_v = [alpha.to(grad_m[k]) * grad_m[k] for k in s.keys]
        self._optimiser_of_v(s).step(grad_v)
        s.apply(grad_w)

    def _mixture(self, s: Site) -> Tree:
        """m = alpha v + (1 - alpha) w in the parameters; BatchNorm statistics are kept with v.

        Where v has no copy, because a term trains the tensor by itself, m has a copy of w's.
        """
        personal = s.own[self.name]
        alpha = personal["alpha"]
        mixture: Tree = {}
        for k, w in s.w.items():
            if k not in personal:
                mixture[k] = w.detach().clone()
            elif k in s.net.params:
                v = personal[k]
                mixture[k] = torch.lerp(w.detach(), v, alpha.to(v))
            else:
                mixture[k] = personal[k]
        return mixture

    def _slope_of_alpha(self, s: Site, grad_m: Tree) -> Tensor:
        """The derivative of f(m) in alpha: <grad f(m), v - w>."""
        v = s.own[self.name]
        slope = torch.zeros((), device=s.device)
        for k in s.keys:
            slope = slope + (grad_m[k] * (v[k] - s.w[k].detach())).sum()
        return slope

    def _optimiser_of_v(self, s: Site) -> Optimizer:
        """Made once for a call of `fit`, whose own optimiser moves w."""
        if self.name not in s.memo:
            v = [s.own[self.name][k] for k in s.keys]
            opt = s.phase.over(s.opt, s.plan.t).opt
            decayed = sum(s.net.owner[stage_of(k)] == METHOD for k in s.keys)
            s.memo[self.name] = make_optimizer(v, opt, decayed)
        optimiser: Optimizer = s.memo[self.name]
        return optimiser

    def personalize(self, s: Site) -> State:
        return {METHOD: self._mixture(s)}
