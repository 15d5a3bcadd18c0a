"""Local training, declared: what the run says (`Opt`) and what a phase says instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Generator, Tensor

from fedloom.core.optimizers import OPTIMIZERS
from fedloom.core.settings import OptimizerName, Settings
from fedloom.errors import BadInput, UnknownName

_AT_LEAST = {"lr": 0, "epochs": 0, "batch": 1, "weight_decay": 0, "clip": 0, "decay": 0}
_CONSTANTS: dict[str, float | None] = {"momentum": 0.0, "beta1": None, "beta2": None, "eps": None}
"""Fields that not every optimiser reads, with their defaults."""


@dataclass(frozen=True)
class Opt(Settings):
    """How a client trains, unless a phase says otherwise.

    `steps` counts mini-batches and, when given, stands in for `epochs`; `decay` multiplies the
    learning rate once per round; `clip` bounds the gradient's norm (0: no bound). `drop_last`
    leaves out an incomplete last batch, except where it is a client's only one. `replacement`
    draws every batch anew from all rows.

    `name` is the optimiser: sgd (reads `momentum`), adam and adamw (`beta1` 0.9, `beta2` 0.999,
    `eps` 1e-8), adagrad (`eps` 1e-10) or rmsprop (`beta2` 0.99, `eps` 1e-8, `momentum`). Only
    adamw takes `weight_decay` off the weights; the others add it to the gradient. What an
    optimiser remembers is forgotten after every phase; with `keep_state` the client keeps it for
    the same phase of its next round.

    >>> Opt("adamw", lr=1e-3, weight_decay=0.01).own(Opt())
    {'name': 'adamw', 'lr': 0.001, 'weight_decay': 0.01}
    """

    name: OptimizerName = "sgd"
    lr: float = 0.05
    epochs: int = 1
    batch: int = 10
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    keep_state: bool = False
    clip: float = 0.0
    decay: float = 1.0
    drop_last: bool = False
    replacement: bool = False

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise UnknownName("optimizer", self.name, OPTIMIZERS)
        for name, low in _AT_LEAST.items():
            if getattr(self, name) < low:
                raise BadInput(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise BadInput(f"steps must be at least 1, got {self.steps}")
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise BadInput(f"{name} is 0 or more and below 1, not {getattr(self, name)}")
        if self.eps is not None and self.eps < 0:
            raise BadInput(f"eps must be at least 0, got {self.eps}")
        self._refuse_unread(f"optimizer {self.name}")

    def _unread(self) -> dict[str, Any]:
        return _unread_by(self.name)

    def filled(self, values: Mapping[str, Any], own: Collection[str]) -> Self:
        """As of all settings; and a method with epochs of its own does not take the run's steps,
        which would stand in for them."""
        return super().filled(values, {*own, "steps"} if "epochs" in own else own)

    def changed(self, values: Mapping[str, Any]) -> Self:
        """The same with a phase's values; constants that its optimiser does not read go."""
        return replace(self, **{**values, **_unread_by(values.get("name", self.name))})


def _unread_by(optimizer: str) -> dict[str, float | None]:
    """Constants that only other optimisers read, with their defaults."""
    read = OPTIMIZERS[optimizer].constants
    return {name: default for name, default in _CONSTANTS.items() if name not in read}


@dataclass(frozen=True)
class Phase:
    """One stretch of local training. None means: what `Opt` says.

    `train` is a pattern over the model's keys. With `frozen_eval` a stage without a trained tensor
    runs in evaluation mode, so that a frozen body's BatchNorm statistics do not move. The
    optimiser's state is kept under the phase's name; that of a second model (`s.fit(phase, w=...)`)
    only where the phase itself says `keep_state`.
    """

    name: str = "local"
    train: str = "*"
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    batch: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    frozen_eval: bool = True
    optimizer: OptimizerName | None = None
    keep_state: bool | None = None

    def over(self, opt: Opt, t: int = 1) -> Schedule:
        """This phase on top of `opt`, in round `t`.

        >>> Phase(epochs=4).over(Opt(lr=0.1, decay=0.5), t=3).opt.lr
        0.025
        """
        values: dict[str, Any] = {
            name: value for name in _PHASE_FIELDS if (value := getattr(self, name)) is not None
        }
        if self.optimizer is not None:
            values["name"] = self.optimizer
        if self.epochs is not None and self.steps is None:
            values["steps"] = None
        rate = values.get("lr", opt.lr) * opt.decay ** max(t - 1, 0)
        return Schedule(self, opt.changed({**values, "lr": rate}))


_PHASE_FIELDS = ["epochs", "steps", "lr", "batch", "momentum", "weight_decay", "clip", "keep_state"]
"""What a phase and `Opt` have under the same name."""


def tuning(train: str, epochs: int, lr: float | None = None) -> tuple[Phase, ...]:
    """A method's `adapt`: one phase of so many epochs, or none.

    >>> tuning("head.*", 0)
    ()
    """
    if epochs < 0:
        raise BadInput(f"fine-tuning takes 0 or more epochs, not {epochs}")
    return (Phase("tune", train, epochs=epochs, lr=lr),) if epochs else ()


@dataclass(frozen=True)
class Schedule:
    """A phase with every value settled: the order of batches follows from it and a generator."""

    phase: Phase
    opt: Opt

    def epochs(self, n: int, gen: Generator) -> Iterator[list[Tensor]]:
        """Row indices of the batches, one list per epoch."""
        for rows in self.orders(n, gen):
            yield list(torch.split(rows, self.opt.batch))

    def orders(self, n: int, gen: Generator) -> Iterator[Tensor]:
        """The same with the batches of an epoch in one tensor, one behind the other."""
        size, left = self.opt.batch, self.opt.steps
        dropped = n % size if self.opt.drop_last and n > size else 0
        epoch = 0
        while left > 0 if left is not None else epoch < self.opt.epochs:
            if self.opt.replacement:
                rows = torch.randint(n, (-(-n // size), size), generator=gen).flatten()
            else:
                rows = torch.randperm(n, generator=gen)
                rows = rows[:-dropped] if dropped else rows
            if left is not None:
                rows = rows[: left * size]
                left -= max(1, -(-len(rows) // size))
            yield rows
            epoch += 1
