"""Several clients trained side by side: every tensor gets one dimension more, in front.

A `Block` is a `Site` whose model is the stack of its members' models, so the loop, the update rule
and the optimiser are the ones of a single client. Only what a client has for itself is written
anew: the order of its batches, its loss, the norm of its gradient.

Bits: a batched product equals the single ones only where it runs the same kernel with the same
accumulation, which is why `F.linear` becomes one `baddbmm` (vmap would add the bias afterwards) and
every client's loss is averaged by the call that averages it otherwise. That still is no promise for
other machines; `engines.blocks` compares before it trusts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.optimizers import clipped
from fedloom.core.phase import Opt, Phase, Schedule
from fedloom.core.privacy import ExamplePrivacy
from fedloom.core.site import Site, Visit, _Loop
from fedloom.core.task import Binary, Classification, Task
from fedloom.core.term import Batch, Term
from fedloom.core.tree import Tree, place

POSITIONLESS = frozenset(
    {Net, nn.Sequential, nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Flatten, nn.Identity}
)
"""Layers that compute a number alike wherever it stands in a tensor. On a CPU most others do not:
the last few numbers, which fill no vector register, go through another sigmoid, and a few in a
hundred of those come out otherwise. Too rare for a trial to be sure to see it."""


def joinable(visit: Visit) -> bool:
    """Can this client be trained side by side with others, and nothing tell the difference?"""
    method, kind = visit.program.method, visit.down.plan.kind
    # Adapting steps plainly; head epochs begin from what `personalize` says.
    hooks = ("loss", "local", "step") if kind == "train" else ("loss", "personalize")
    phases = method.phases if kind == "train" else visit.program.adapt
    return (
        kind != "special"
        # Gradients of single rows have a dimension more already.
        and not isinstance(visit.program.privacy, ExamplePrivacy)
        and all(_steps_alike(phase.over(method.opt).opt) for phase in phases)
        and all(getattr(type(method), hook) is getattr(Method, hook) for hook in hooks)
        and not any(part.overrides(hook) for part in method.parts for hook in ("inputs", "grads"))
        and not any(term.overrides("loss") for term in method.terms)
        and _mean_of_rows(visit.program.task)
        and _batchable(visit.program.net(visit.cid), visit.device)
        and len(visit.data.train) > 0
        and not visit.data.train.augmented
    )


def _mean_of_rows(task: Task) -> bool:
    """Is the loss of a batch the mean of its rows' losses, each of one class?"""
    return type(task) in (Classification, Binary) and getattr(task, "plain", False) is True


def _steps_alike(opt: Opt) -> bool:
    """Does its optimiser move stacked tensors as it moves single ones? The roots and quotients of
    the adaptive ones are of no such promise; and kept state is one client's."""
    return opt.name == "sgd" and not opt.keep_state


def _batchable(net: Net, device: torch.device) -> bool:
    """Layers that draw have a stream per client; BatchNorm changes its statistics in place."""
    if device.type == "cpu":
        return all(type(m) in POSITIONLESS for m in net.modules())
    return not any(
        isinstance(m, _DropoutNd | _BatchNorm) or getattr(m, "draws", False) is True
        for m in net.modules()
    )


class Block(Site):
    """Sites of one round with the same net, the same options and equally many rows, as one.

    After `fit` every member is as if it had been trained alone. `watch` is called before every
    step and may raise; the members are then of no more use.
    """

    def __init__(self, members: Sequence[Site], watch: Callable[[], None] = lambda: None) -> None:
        vars(self).update(vars(members[0]))  # program, plan, options: what they have in common
        common = (self.method.opt, self.net, len(self.data.train))
        if any((m.opt, m.net, len(m.data.train)) != common for m in members):
            raise ValueError("clients that train differently cannot be one block")
        self.members, self.watch = members, watch
        self.w = {k: torch.stack([m.w[k] for m in members]) for k in self.w}
        self.travel, self._fits = dict(self.travel), dict(self._fits)
        self._row = torch.arange(len(members), device=self.device)[:, None]

    def fit(
        self,
        phase: Phase,
        w: Tree | None = None,
        terms: Sequence[Term] | None = None,
        plain: bool = False,
    ) -> Tree:
        """The one loop, and each member gets its share of what came out."""
        self._losses = torch.zeros(len(self.members), device=self.device)
        before = self.steps
        trained = super().fit(phase, w, terms, plain)
        steps, losses = self.steps - before, self._losses.tolist()
        for i, member in enumerate(self.members):
            member.w = {k: place(v[i].clone(), self.device) for k, v in trained.items()}
            member.travel, member._fits = dict(self.travel), dict(self._fits)
            member.steps = self.steps
            if steps:
                member.mean_loss = losses[i] / steps
        return trained

    def _prepare(self, schedule: Schedule, training: str) -> _Loop:
        """The loop's optimiser does not clip: that is done in `apply`, by client. Its batches are
        the first member's; the other orders are kept for `_gathered`."""
        self._clip = schedule.opt.clip
        rows, tag = len(self.data.train), (training, self._fits[training])
        gens = [m.gen(("batches", *tag)) for m in self.members[1:]]
        self._orders = [schedule.epochs(rows, gen) for gen in gens]
        return super()._prepare(replace(schedule, opt=replace(schedule.opt, clip=0.0)), training)

    def _gathered(self, batches: Sequence[Tensor], augment: Generator) -> Iterator[Batch]:
        """The batches of an epoch: x [B, n, ...], y and idx [B, n]."""
        orders = (batches, *(next(order) for order in self._orders))
        streams = (m._gathered(o, augment) for m, o in zip(self.members, orders, strict=True))
        for each in zip(*streams, strict=True):
            self.watch()
            x, y, idx = (torch.stack([getattr(b, of) for b in each]) for of in ("x", "y", "idx"))
            yield Batch(x, y, idx, y)

    def _known_outputs(self) -> Mapping[str, Tensor]:
        """Nothing: what is fixed is given to the members' pass, each its own rows."""
        return {}

    def _fixed_outputs(self, loop: _Loop, w: Tree) -> dict[str, Tensor]:
        """Member by member: over all rows of one client at once, as it does alone."""
        by_member = []
        for member in self.members:
            member._loop = loop
            by_member.append(member._fixed_outputs(loop, member.w))
            member._loop = None
        return {stage: torch.stack([out[stage] for out in by_member]) for stage in by_member[0]}

    def grad(self, b: Batch, w: Tree | None = None, corrected: bool = True) -> Tree:
        """Every member's gradient, stacked: one forward and one backward pass."""
        loop = self._running
        fixed = {stage: z[self._row, b.idx.to(self.device)] for stage, z in loop.fixed.items()}
        with _OneKernel():
            logits = vmap(self._logits)(self.w, b.x, fixed)  # [B, n, K]
        rows = self.task.loss(logits.flatten(0, 1), b.target.flatten(), reduction="none")
        pairs = zip(logits.detach(), b.target, strict=True)
        losses = torch.stack([self.task.loss(z, y) for z, y in pairs])
        self._losses += losses
        loop.loss_sum += losses.sum()
        loop.batches += 1
        leaves = [self.w[k] for k in loop.keys]
        gradients = torch.autograd.grad(rows.sum() / b.idx.shape[1], leaves, allow_unused=True)
        return {
            k: torch.zeros_like(leaf) if v is None else v
            for k, leaf, v in zip(loop.keys, leaves, gradients, strict=True)
        }

    def _logits(self, w: Tree, x: Tensor, fixed: Mapping[str, Tensor]) -> Tensor:
        """One member's forward pass, as vmap sees it."""
        last = self.net.logits
        return self.net(w, x, train=self._running.modes, want=last, given=fixed)[last]

    def apply(self, g: Tree) -> None:
        """Clip each member's gradient by its own norm and take the step."""
        if self._clip:
            by_client = vmap(partial(clipped, bound=self._clip))([g[k] for k in self.keys])
            g = dict(zip(self.keys, by_client, strict=True))
        super().apply(g)


class _OneKernel(TorchFunctionMode):
    """Under vmap, a linear layer with its bias is one batched product, as it is one product alone.

    Left to itself vmap multiplies and adds afterwards, which rounds once more where the product is
    accumulated in pieces.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.linear and len(args) == 3 and args[0].ndim == 2 and args[2] is not None:
            return _Linear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """`F.linear` with a batching rule of its own."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass  # differentiated where it is batched, never here

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return _Linears.apply(x, weight, bias), 0  # type: ignore[no-untyped-call]


class _Linears(torch.autograd.Function):
    """Linear layers side by side: x [B, n, i], weight [B, o, i], bias [B, o].

    The products of the single layer's passes; autograd's own for `baddbmm` would lay out the
    weight's gradient the other way round, and norms would sum it in another order.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            torch.bmm(g, weight) if needs[0] else None,
            torch.bmm(g.transpose(1, 2), x) if needs[1] else None,
            g.sum(1) if needs[2] else None,
        )
