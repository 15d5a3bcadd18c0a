"""Per-FedAvg: a common model from which one gradient step makes each client a good one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.rng import rng_scope
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import Tree, place
from fedloom.core.tunable import Integer, Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.second_order import differentiable_twice


@register
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """Model-agnostic meta-learning across clients (Fallah et al., NeurIPS 2020, Algorithm 1).

    The objective is mean_i F_i(w), where F_i(w) = f_i(w - alpha grad f_i(w)). beta is the run's
    learning rate, H the Hessian of f, and D, D', D'' are three batches of the client. Each round::

        client i  every local step:
                  w~ <- w - alpha grad f(w; D)
                  v  <- grad f(w~; D')
                  w  <- w - beta (I - alpha H(w; D'')) v
                    exact          H v by differentiating <grad f(w; D''), v>
                    hessian_free   H v = (grad f(w + delta v; D'') - grad f(w - delta v; D''))
                                         / (2 delta)
                    first_order    H = 0
        server    w <- mean over the participants, with equal weights
        at a test w_i <- w - alpha grad f_i(w), `adapt_steps` times

    Hyper-parameters: `alpha` 0.01. `variant` "exact" is the update of Algorithm 1; the other two
    are the paper's approximations of it ("first_order" is what the DBE paper's tables come from).
    `delta` 0.001 is the difference quotient's. It errs where a ReLU switches between w - delta v
    and w + delta v: the jump of its gradient, divided by 2 delta, can exceed H v many times.
    `adapt_steps` 1; the DBE paper reports the method after fine-tuning, which is the default
    protocol here. Where the loss curves by more than 1/alpha the factor I - alpha H turns the step
    round; then lower the learning rate, or set `clip` (10 has served).

    Deviations: none. D' is the batch of the training loop; D and D'' are drawn anew with as many
    rows, so that full batches give the exact gradient of F_i. alpha decays over the rounds as the
    run's learning rate does. The step before a test has neither momentum nor weight decay, and so
    is the step that was trained for. H is the Hessian of the task's loss; the curvature of the
    losses that terms add is left out. Terms that correct gradients correct v, not the inner
    gradient.

    Leaves the client: the whole model; never the adapted one.

    >>> PerFedAvg(alpha=0.05).adapt[0].lr
    0.05
    """

    name: ClassVar[str] = "perfedavg"
    family: ClassVar[str] = "personal model"
    tunable: ClassVar[Tunable] = {"alpha": Log(1e-3, 0.1), "adapt_steps": Integer(1, 10)}
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "it draws further batches for each step, so that a row is in any number of them"
    )
    weighting: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.01
    variant: Literal["exact", "hessian_free", "first_order"] = "exact"
    delta: float = 0.001
    adapt_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.adapt_steps < 0:
            raise BadInput("perfedavg: alpha and adapt_steps must be 0 or more")
        if self.delta <= 0:
            raise BadInput(f"perfedavg: delta must be positive, got {self.delta:g}")
        if self.variant not in ("exact", "hessian_free", "first_order"):
            raise BadInput(
                f"variant must be exact, hessian_free or first_order, got {self.variant!r}"
            )

    @property
    def adapt(self) -> tuple[Phase, ...]:
        if not self.adapt_steps:
            return ()
        plain = Phase("tune", optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=0.0)
        return (replace(plain, steps=self.adapt_steps, lr=self.alpha),)

    def step(self, b: Batch, s: Site) -> None:
        alpha = Phase(lr=self.alpha).over(s.opt, s.plan.t).opt.lr  # decayed as the run's rate is
        inner = s.grad(self._another_batch(b, s), corrected=False)  # grad f(w; D)
        w_tilde = _moved(s.w, inner, -alpha)
        v = s.grad(b, w_tilde)  # grad f(w~; D')
        if self.variant != "first_order":
            hessian_v = self._hessian_times(v, b, s)
            v = {k: v[k] - alpha * hessian_v[k] for k in v}
        s.apply(v)

    def _another_batch(self, b: Batch, s: Site) -> Batch:
        """A batch as large as this one, drawn from all training rows."""
        if self.name not in s.memo:
            s.memo[self.name] = s.gen(self.name)
        gen, train = s.memo[self.name], s.data.train
        idx = torch.randperm(len(train), generator=gen)[: len(b.idx)]
        x = place(train.x(idx, gen), s.device)
        y = train.y[idx].to(s.device)
        return Batch(x, y, idx, target=y)

    def _hessian_times(self, v: Tree, b: Batch, s: Site) -> Tree:
        """H(w; D'') v."""
        drawn = self._another_batch(b, s)
        if self.variant == "exact":
            return self._derivative_along(v, drawn, s)
        ahead = self._grad_at(_moved(s.w, v, self.delta), list(v), drawn, s)
        behind = self._grad_at(_moved(s.w, v, -self.delta), list(v), drawn, s)
        return {k: (ahead[k] - behind[k]) / (2 * self.delta) for k in v}

    def _derivative_along(self, v: Tree, b: Batch, s: Site) -> Tree:
        """The derivative of <grad f(w; b), v> in w, which is H v."""
        w = _moved(s.w, v, 0.0)
        with differentiable_twice():
            g = self._grad_at(w, list(v), b, s, create_graph=True)
        product = torch.stack([(g[k] * v[k]).sum() for k in v]).sum()
        if not product.requires_grad:  # f is linear in w
            return {k: torch.zeros_like(x) for k, x in v.items()}
        leaves = [w[k] for k in v]
        columns = torch.autograd.grad(product, leaves, materialize_grads=True)
        return dict(zip(v, columns, strict=True))

    def _grad_at(
        self, w: Tree, keys: list[str], b: Batch, s: Site, create_graph: bool = False
    ) -> Tree:
        """grad f(w; b) with respect to these tensors.

        Every call in a step draws the same random layers (dropout), because the difference of two
        draws, divided by 2 delta, would drown H v. BatchNorm's running statistics are copied, so
        that this forward pass does not change the client's.
        """
        w = w | {k: x.clone() for k, x in w.items() if k not in s.net.params}
        with rng_scope(*s.plan.key, s.cid, "probe", s.steps):
            b.out = s.net(w, b.x, train=s.modes)
        leaves = [w[k] for k in keys]
        loss = self.loss(b, s)
        grads = torch.autograd.grad(loss, leaves, create_graph=create_graph, materialize_grads=True)
        return dict(zip(keys, grads, strict=True))


def _moved(w: Tree, direction: Tree, by: float) -> Tree:
    """w + by * direction, ready to be differentiated.

    Tensors without a direction are shared with w: BatchNorm's running statistics follow every
    forward pass, wherever in weight space it is taken.
    """
    moved: Tree = {}
    for k, x in direction.items():
        moved[k] = w[k].detach().add(x, alpha=by).requires_grad_()
    return {**w, **moved}
