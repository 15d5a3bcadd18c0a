"""The clients' optimisers, which move a few tensors in place.

The arithmetic of torch's own, tensor by tensor, without its import of the compiler in every process
and its wrappers around every step, which small networks feel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedloom.core.tree import Tree
from fedloom.core.witness import show

if TYPE_CHECKING:
    from fedloom.core.phase import Opt

OPTIMIZER = "optimizer"
"""The slice that holds an optimiser's state, at a client or on the server. It belongs to the
method and never travels."""
STEPS = "steps"
"""Its key for the number of steps taken."""


class Optimizer:
    """Clips, adds weight decay to the gradient, and moves the tensors.

    Weight decay leaves out the tensors from the place `decayed` on; by default none.
    """

    constants: ClassVar[Mapping[str, float]] = {}
    """Fields of `Opt` that this optimiser reads and others may not, with their defaults."""
    decoupled: ClassVar[bool] = False
    """Weight decay shrinks the tensors and is no part of the gradient."""

    def __init__(self, params: Sequence[Tensor], opt: Opt, decayed: int | None = None) -> None:
        self.params, self.opt = params, opt
        self.decayed = len(params) if decayed is None else decayed
        self.steps = 0
        self.buffers: dict[str, list[Tensor]] = {}
        """Name -> a tensor for each one that is trained."""

    def constant(self, name: str) -> float:
        """What `opt` says, or the optimiser's own default."""
        value: float | None = getattr(self.opt, name)
        return self.constants[name] if value is None else value

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor]) -> None:
        """One step against these gradients."""
        opt = self.opt
        if opt.clip:
            grads = clipped(grads, opt.clip)
        show(grads)
        if opt.weight_decay:
            grads = self._with_decay(grads)
        self.steps += 1
        self._move(grads)

    def _with_decay(self, grads: Sequence[Tensor]) -> Sequence[Tensor]:
        rate = self.opt.weight_decay
        if self.decoupled:
            for param in self.params[: self.decayed]:
                param.mul_(1 - self.opt.lr * rate)
            return grads
        return [
            grad.add(param, alpha=rate) if i < self.decayed else grad
            for i, (param, grad) in enumerate(zip(self.params, grads, strict=True))
        ]

    def _move(self, grads: Sequence[Tensor]) -> None:
        raise NotImplementedError

    def _buffer(self, name: str) -> list[Tensor]:
        """A buffer by its name; zeros before it is first written."""
        if name not in self.buffers:
            self.buffers[name] = [torch.zeros_like(p) for p in self.params]
        return self.buffers[name]

    def state(self, keys: Sequence[str]) -> Tree:
        """The buffers and the number of steps, under the names of the tensors."""
        tree: Tree = {STEPS: torch.tensor(self.steps)}
        for name, tensors in self.buffers.items():
            tree |= {f"{name}/{k}": v for k, v in zip(keys, tensors, strict=True)}
        return tree

    def restore(self, keys: Sequence[str], state: Tree) -> None:
        """Go on from what `state` returned; from the beginning where that was for other tensors."""
        names = dict.fromkeys(key.partition("/")[0] for key in state if key != STEPS)
        if state.keys() == {STEPS, *(f"{name}/{k}" for name in names for k in keys)}:
            self.steps = int(state[STEPS])
            self.buffers = {name: [state[f"{name}/{k}"] for k in keys] for name in names}


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum where `opt` has it."""

    constants: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    def _move(self, grads: Sequence[Tensor]) -> None:
        opt = self.opt
        if opt.momentum:
            grads = self._accelerated(grads)
        for param, grad in zip(self.params, grads, strict=True):
            param.add_(grad, alpha=-opt.lr)

    def _accelerated(self, grads: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.buffers:
            self.buffers["velocity"] = [g.clone() for g in grads]
        else:
            for buffer, grad in zip(self.buffers["velocity"], grads, strict=True):
                buffer.mul_(self.opt.momentum).add_(grad)
        return self.buffers["velocity"]


class Adam(Optimizer):
    """Kingma and Ba (2015), Algorithm 1.

    >>> from fedloom.core.phase import Opt
    >>> w = torch.tensor([1.0])
    >>> Adam([w], Opt(lr=0.25)).step([torch.tensor([7.0])])  # a first step is lr times the sign
    >>> w
    tensor([0.7500])
    """

    constants: ClassVar[Mapping[str, float]] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

    def _move(self, grads: Sequence[Tensor]) -> None:
        beta1, beta2, eps = (self.constant(name) for name in ("beta1", "beta2", "eps"))
        means, squares = self._buffer("mean"), self._buffer("square")
        rate = -self.opt.lr / (1 - beta1**self.steps)
        bias = 1 - beta2**self.steps
        for p, g, m, v in zip(self.params, grads, means, squares, strict=True):
            m.mul_(beta1).add_(g, alpha=1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.addcdiv_(m, (v / bias).sqrt_().add_(eps), value=rate)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    decoupled: ClassVar[bool] = True


class Adagrad(Optimizer):
    """Duchi et al. (2011): every coordinate by the root of the sum of its squared gradients."""

    constants: ClassVar[Mapping[str, float]] = {"eps": 1e-10}

    def _move(self, grads: Sequence[Tensor]) -> None:
        eps = self.constant("eps")
        for p, g, v in zip(self.params, grads, self._buffer("square"), strict=True):
            v.addcmul_(g, g, value=1)
            p.addcdiv_(g, v.sqrt().add_(eps), value=-self.opt.lr)


class RMSprop(Optimizer):
    """Tieleman and Hinton (2012), with momentum where `opt` has it; torch's alpha is `beta2`."""

    constants: ClassVar[Mapping[str, float]] = {"beta2": 0.99, "eps": 1e-8, "momentum": 0.0}

    def _move(self, grads: Sequence[Tensor]) -> None:
        beta2, eps, opt = self.constant("beta2"), self.constant("eps"), self.opt
        velocities = self._buffer("velocity") if opt.momentum else None
        squares = self._buffer("square")
        for i, (p, g, v) in enumerate(zip(self.params, grads, squares, strict=True)):
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            size = v.sqrt().add_(eps)
            if velocities is None:
                p.addcdiv_(g, size, value=-opt.lr)
            else:
                p.add_(velocities[i].mul_(opt.momentum).addcdiv_(g, size), alpha=-opt.lr)


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
}
"""What `Opt.name` means."""


def make_optimizer(params: Sequence[Tensor], opt: Opt, decayed: int | None = None) -> Optimizer:
    """The optimiser that `opt` names, for these tensors."""
    return OPTIMIZERS[opt.name](params, opt, decayed)


def clipped(grads: Sequence[Tensor], bound: float) -> list[Tensor]:
    """Gradients scaled down together so that their common norm is at most `bound`.

    >>> clipped([torch.tensor([3.0]), torch.tensor([4.0])], 1.0)
    [tensor([0.6000]), tensor([0.8000])]
    """
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    scale = (bound / (norm + 1e-6)).clamp(max=1.0)
    return [g * scale for g in grads]
