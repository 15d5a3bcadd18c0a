"""Per-FedAvg: a common model that one step of each client's own turns into a good one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.rng import rng_scope
from fedloom.core.term import Batch
from fedloom.core.tree import place
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """Model-agnostic meta-learning across clients (Fallah et al., NeurIPS 2020, Algorithm 1).

    The objective is mean_i F_i(w), F_i(w) = f_i(w - alpha grad f_i(w)). Each local step, with
    three batches D, D', D'' of the client, beta being the run's learning rate::

        w~        w - alpha grad f(w; D)
        v         grad f(w~; D')
        w         w - beta (I - alpha H(w; D'')) v                  H: the Hessian of f
          first_order    H = 0
          hessian_free   H v = (grad f(w + delta v; D'') - grad f(w - delta v; D'')) / 2 delta
        server    w <- mean over the cohort, all clients alike
        at a test w_i <- w - alpha grad f_i(w), `adapt_steps` times

    Hyper-parameters: `alpha` 0.01; `variant` "hessian_free", which keeps Algorithm 1's update (the
    DBE paper's tables come from "first_order"); `delta` 0.001; `adapt_steps` 1. DBE reports it
    after fine-tuning, which is the default protocol here.

    Deviations: none. D' is the loop's batch, D and D'' are drawn anew with as many rows, so full
    batches give the exact gradient of F_i. alpha shares the run's decay and the step has neither
    momentum nor weight decay, so that the step of the test is the step trained for. H is of the
    task's loss: the curvature of a term's is left out. Terms that correct gradients correct v and
    not the inner gradient.

    Leaves the client: the whole model; never the adapted one.

    >>> PerFedAvg(alpha=0.05).adapt[0].lr
    0.05
    """

    name: ClassVar[str] = "perfedavg"
    family: ClassVar[str] = "personal model"
    weighting: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.01
    variant: Literal["first_order", "hessian_free"] = "hessian_free"
    delta: float = 0.001
    adapt_steps: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.alpha < 0 or self.adapt_steps < 0:
            raise BadInput("perfedavg: alpha and adapt_steps must be 0 or more")
        if self.delta <= 0:
            raise BadInput(f"perfedavg: delta must be positive, got {self.delta:g}")
        if self.variant not in ("first_order", "hessian_free"):
            raise BadInput(f"variant must be first_order or hessian_free, got {self.variant!r}")

    @property
    def adapt(self):
        if not self.adapt_steps:
            return ()
        plain = Phase("tune", momentum=0.0, weight_decay=0.0, clip=0.0)
        return (replace(plain, steps=self.adapt_steps, lr=self.alpha),)

    def step(self, b, s):
        alpha = Phase(lr=self.alpha).over(s.opt, s.plan.t).opt.lr
        inner = s.grad(self._another(b, s), corrected=False)
        v = s.grad(b, _moved(s.w, inner, -alpha))
        if self.variant == "hessian_free":
            bent = self._hessian_times(v, b, s)
            v = {k: x - alpha * bent[k] for k, x in v.items()}
        s.apply(v)

    def _another(self, b, s):
        """A batch as large as this one, drawn from all rows."""
        if self.name not in s.memo:
            s.memo[self.name] = s.gen(self.name)
        gen, train = s.memo[self.name], s.data.train
        idx = torch.randperm(len(train), generator=gen)[: len(b.idx)]
        y = train.y[idx].to(s.device)
        return Batch(place(train.x(idx, gen), s.device), y, idx, y)

    def _hessian_times(self, v, b, s):
        """H(w; D'') v by a central difference. Both ends run the same random layers, or the
        difference would be their noise over 2 delta, and touch no running statistics."""
        drawn = self._another(b, s)
        ends = []
        for sign in (1, -1):
            w = _moved(s.w, v, sign * self.delta)
            w |= {k: x.clone() for k, x in w.items() if k not in s.net.params}
            with rng_scope(*s.plan.key, s.cid, "probe", s.steps):
                drawn.out = s.net(w, drawn.x, train=s.modes)
            leaves = [w[k] for k in v]
            ends.append(torch.autograd.grad(self.loss(drawn, s), leaves, materialize_grads=True))
        return {k: (p - m) / (2 * self.delta) for k, p, m in zip(v, *ends, strict=True)}


def _moved(w, direction, by):
    """w + by * direction, ready to be differentiated. What does not move is shared with w:
    BatchNorm's statistics follow every forward pass."""
    moved = {k: w[k].detach().add(x, alpha=by).requires_grad_() for k, x in direction.items()}
    return {**w, **moved}
