"""The server's optimisers: what becomes of the mean of the clients' models (FedOpt)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.settings import ServerOptimizerName, Settings
from fedloom.core.tree import Tree
from fedloom.errors import BadInput, UnknownName

_CONSTANTS = {"beta1": None, "beta2": 0.99, "tau": 1e-3}
"""Fields that not every optimiser reads, with their defaults."""
_READ: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("beta1",),
    "adagrad": ("beta1", "tau"),
    "adam": ("beta1", "beta2", "tau"),
    "yogi": ("beta1", "beta2", "tau"),
}
"""Optimiser -> which of them it reads."""


@dataclass(frozen=True)
class ServerOpt(Settings):
    """How the server's model x goes on from the mean of the clients' models.

    Adaptive federated optimisation (Reddi et al., ICLR 2021, Algorithm 2). With
    Delta = mean - x, the pseudo-gradient with its sign turned, every round::

        sgd         x <- x + lr Delta                          lr 1: x is the mean, as in FedAvg
        momentum    m <- beta1 m + Delta;  x <- x + lr m       FedAvgM (Hsu et al., 2019)
        otherwise   m <- beta1 m + (1 - beta1) Delta
                    x <- x + lr m / (sqrt(v) + tau), with
          adagrad   v <- v + Delta^2
          adam      v <- beta2 v + (1 - beta2) Delta^2
          yogi      v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)

    There is no bias correction, as in the paper. m begins at 0 and v at tau^2, the smallest value
    that the paper allows. `beta1` is 0.9, but 0 for adagrad, as in its experiments. Parameters
    only: with any optimiser but sgd BatchNorm's statistics become their mean.

    >>> ServerOpt("yogi", lr=0.01)
    ServerOpt(name='yogi', lr=0.01, beta1=None, beta2=0.99, tau=0.001)
    """

    name: ServerOptimizerName = "sgd"
    lr: float = 1.0
    beta1: float | None = None
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.name not in _READ:
            raise UnknownName("server optimizer", self.name, _READ)
        if self.lr < 0:
            raise BadInput(f"server_lr must be at least 0, got {self.lr}")
        if not 0 <= (self.beta1 or 0) < 1 or not 0 <= self.beta2 < 1:
            raise BadInput(
                f"server_beta1 and server_beta2 are 0 or more and below 1,"
                f" not {self.beta1} and {self.beta2}"
            )
        if self.tau <= 0:
            raise BadInput(f"server_tau must be above 0, got {self.tau}")
        self._refuse_unread(f"server_optimizer {self.name}", "server_")

    def _unread(self) -> dict[str, Any]:
        return {k: default for k, default in _CONSTANTS.items() if k not in _READ[self.name]}

    @property
    def fading(self) -> float:
        """`beta1`, or the optimiser's default."""
        default = 0.0 if self.name == "adagrad" else 0.9
        return default if self.beta1 is None else self.beta1


def server_step(
    opt: ServerOpt, old: Tree, mean: Tree, state: Tree, params: Collection[str]
) -> tuple[Tree, Tree]:
    """The model after a step from `old` towards `mean`, and the optimiser's state after it.

    `state` is empty before the first step; `params` names the tensors that are no statistics.
    """
    if opt.name == "sgd":
        return _towards(old, mean, opt.lr), {}
    new, new_state = dict(mean), dict(state)
    for key, x in old.items():
        if key in params:
            step = _momentum_step if opt.name == "momentum" else _adaptive_step
            change, moments = step(opt, mean[key] - x, _of_key(state, key))
            new[key] = x + opt.lr * change
            new_state |= {f"{name}/{key}": moment for name, moment in moments.items()}
    return new, new_state


def _towards(old: Tree, mean: Tree, lr: float) -> Tree:
    """All the way, without a rounding error, or a part of it."""
    if lr == 1:
        return mean
    return {k: (x + lr * (mean[k] - x)).to(x.dtype) for k, x in old.items()}


def _of_key(state: Tree, key: str) -> Tree:
    """m and v of one tensor, as far as there are any."""
    return {name: state[at] for name in ("m", "v") if (at := f"{name}/{key}") in state}


def _momentum_step(opt: ServerOpt, delta: Tensor, moments: Tree) -> tuple[Tensor, Tree]:
    m = opt.fading * moments.get("m", torch.zeros_like(delta)) + delta
    return m, {"m": m}


def _adaptive_step(opt: ServerOpt, delta: Tensor, moments: Tree) -> tuple[Tensor, Tree]:
    m = moments.get("m", torch.zeros_like(delta))
    v = moments.get("v", torch.full_like(delta, opt.tau**2))
    m = opt.fading * m + (1 - opt.fading) * delta
    v = _second_moment(opt, v, delta**2)
    return m / (v.sqrt() + opt.tau), {"m": m, "v": v}


def _second_moment(opt: ServerOpt, v: Tensor, square: Tensor) -> Tensor:
    if opt.name == "adagrad":
        return v + square
    if opt.name == "adam":
        return opt.beta2 * v + (1 - opt.beta2) * square
    return v - (1 - opt.beta2) * square * torch.sign(v - square)  # yogi
