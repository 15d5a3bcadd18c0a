"""Local training, declared: what the run says (`Opt`) and what a phase says instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Generator, Tensor

from fedloom.errors import BadInput


@dataclass(frozen=True)
class Opt:
    """How a client trains, unless a phase says otherwise.

    `steps` counts mini-batches and, when given, stands in for `epochs`; `decay` multiplies the
    learning rate once per round; `clip` bounds the gradient's norm (0: no bound). `drop_last`
    leaves out an incomplete last batch, except where it is a client's only one. `replacement`
    draws every batch anew from all rows.
    """

    lr: float = 0.05
    epochs: int = 1
    batch: int = 10
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    decay: float = 1.0
    drop_last: bool = False
    replacement: bool = False

    def __post_init__(self) -> None:
        for name, low in (("lr", 0), ("epochs", 0), ("batch", 1), ("clip", 0), ("decay", 0)):
            if getattr(self, name) < low:
                raise BadInput(f"{name} must be at least {low}, got {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise BadInput(f"steps must be at least 1, got {self.steps}")


@dataclass(frozen=True)
class Phase:
    """One stretch of local training. None means: what `Opt` says.

    `train` is a pattern over the model's keys. With `frozen_eval` a stage without a trained tensor
    runs in evaluation mode, so that a frozen body's BatchNorm statistics do not move.
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

    def over(self, opt: Opt, t: int = 1) -> Schedule:
        """This phase on top of `opt`, in round `t`.

        >>> Phase(epochs=4).over(Opt(lr=0.1, decay=0.5), t=3).opt.lr
        0.025
        """
        said = {f.name: v for f in fields(opt) if (v := getattr(self, f.name, None)) is not None}
        if self.epochs is not None and self.steps is None:
            said["steps"] = None
        opt = replace(opt, **said)
        return Schedule(self, replace(opt, lr=opt.lr * opt.decay ** max(t - 1, 0)))


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
        left = self.opt.steps
        epoch = 0
        while left > 0 if left is not None else epoch < self.opt.epochs:
            batches = self._epoch(n, gen)[:left]
            yield batches
            epoch += 1
            if left is not None:
                left -= len(batches)

    def _epoch(self, n: int, gen: Generator) -> list[Tensor]:
        size = self.opt.batch
        if self.opt.replacement:
            return list(torch.randint(n, (-(-n // size), size), generator=gen))
        batches = list(torch.split(torch.randperm(n, generator=gen), size))
        if self.opt.drop_last and len(batches) > 1 and len(batches[-1]) < size:
            batches.pop()
        return batches
