"""pFedMe: personal models inside Moreau envelopes around the global one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Moreau envelopes as client objectives (T. Dinh et al., NeurIPS 2020, Algorithm 1).

    The objective is mean_i F_i(w), where F_i(w) = min_theta f_i(theta) + lam/2 ||theta - w||^2; its
    gradient is lam (w - theta). eta is the run's learning rate. Each round::

        client i  every local step, on a batch D:
                  theta <- K gradient steps of rate `inner_lr` from w, all on D, on
                           f(theta; D) + lam/2 ||theta - w||^2                             eq. (7)
                  w <- w - eta lam (w - theta)                                             line 8
        server    w <- (1 - beta) w + beta mean_i w_i over the participants                line 10
        at a test theta of the client's last step

    Hyper-parameters: `lam` 15 (FedPAC: 10 of {0.1, 1, 10, 100}). `steps` is K, 5. `server_lr` is
    beta, 1.0 (2 in some of the paper's runs). `inner_lr` 0.01; the published commands have 0.1 or
    0.09 for MNIST and 0.01 for their synthetic data, with a learning rate of 0.005 and 20 local
    steps. At a small inner_lr theta hardly leaves w, and both learn slowly. theta is fitted to its
    last mini-batch, which is why it can be worse than w at a test. The K steps converge only if
    inner_lr < 2 / (lam + the curvature of the loss), and w converges only if eta lam < 2.

    Deviations: the paper leaves open where the K steps begin; here they begin at w. In the
    published code they begin at the theta of the batch before, within a round (`warm_start=True`),
    and clients are weighted by samples (`weighting="samples"`); theta's steps there have a weight
    decay of 0.001, and what is tested as personal is w_i. theta uses the BatchNorm statistics of w.
    inner_lr decays over the rounds as the run's learning rate does. The losses of terms are added
    to theta's; terms that correct gradients are refused, because the step of w is not a gradient of
    the loss.

    Leaves the client: w; never theta.

    >>> PFedMe(lam=10.0).steps
    5
    """

    name: ClassVar[str] = "pfedme"
    family: ClassVar[str] = "personal model"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    personal_model: ClassVar[bool] = True
    refuses: ClassVar[tuple[str, ...]] = ("proximal", "control_variates", "client_momentum")
    # FedPAC's grid of lam.
    tunable: ClassVar[Tunable] = {"lam": Log(0.1, 100), "inner_lr": Log(1e-3, 0.1)}
    weighting: Literal["samples", "uniform"] = "uniform"
    lam: float = 15.0
    steps: int = 5
    inner_lr: float = 0.01
    warm_start: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam <= 0 or self.inner_lr <= 0:
            raise BadInput("pfedme: lam and inner_lr must be positive")
        if self.steps < 1:
            raise BadInput(f"pfedme: steps must be at least 1, got {self.steps}")

    @property
    def pace(self) -> float:
        """lam (w - theta) for a theta that went `steps` steps of `inner_lr` from w, if not all the
        way to where the two pulls are even."""
        return min(1.0, self.lam * self.inner_lr * self.steps)

    @property
    def gradient_phases(self) -> tuple[Phase, ...]:
        """`steps` of theta for each of w."""
        return self.phases * self.steps

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: s.start}

    def step(self, b: Batch, s: Site) -> None:
        begin = s.memo.get(self.name, s.w) if self.warm_start else s.w
        theta = self._minimized(begin, b, s)
        s.memo[self.name] = s.own[self.name] = theta
        s.apply({k: self.lam * (s.w[k].detach() - theta[k]) for k in s.keys})  # line 8

    def _minimized(self, begin: Tree, b: Batch, s: Site) -> Tree:
        """theta after K steps from `begin` on f(theta; b) + lam/2 ||theta - w||^2."""
        rate = Phase(lr=self.inner_lr).over(s.opt, s.plan.t).opt.lr  # decayed as the run's rate is
        trained = {k: begin[k].detach().clone().requires_grad_() for k in s.keys}
        theta = {**s.w, **trained}  # other tensors, such as BatchNorm's statistics, are those of w
        for _ in range(self.steps):
            g = s.grad(replace(b), theta, corrected=False)  # a copy, for terms may change a batch
            with torch.no_grad():
                for k, x in trained.items():
                    x.sub_(rate * (g[k] + self.lam * (x - s.w[k])))  # eq. (7)
        return {k: x.detach() for k, x in theta.items()}

    def personalize(self, s: Site) -> State:
        return {"model": s.own[self.name]}
