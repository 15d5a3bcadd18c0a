"""The probe behind DBE's MDL numbers: a network with two hidden layers, trained for fixed steps.

Settings of the public package `reprieve`, PyTorch path. Without regularisation it grows
overconfident where features are weak, and 50 fits of 4,000 steps take half an hour or more of one
core: a reference for single matrices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analysis.probe import Fitted, Whitening, positive, whitened
from fedloom.core.optimizers import make_optimizer
from fedloom.core.phase import Opt
from fedloom.core.rng import generator


@dataclass(frozen=True)
class MLPProbe:
    """d - hidden - hidden - C with ReLU; Adam, no decay, no early stopping; in float32.

    >>> probe = MLPProbe(steps=2, hidden=4)
    >>> predict = probe.fit(torch.eye(2), torch.tensor([0, 1]), 3, key=0)
    >>> predict(torch.eye(2)).exp().sum(1).round(decimals=6)
    tensor([1., 1.], dtype=torch.float64)
    """

    steps: int = 4000
    lr: float = 1e-4
    hidden: int = 512
    batch: int = 256
    seeds: int = 5
    nested: bool = False
    whiten: Whitening = "scalar"

    def __post_init__(self) -> None:
        positive(steps=self.steps, lr=self.lr, hidden=self.hidden, batch=self.batch)
        positive(seeds=self.seeds)

    def prepare(self, x: Tensor, pool: int, trained: int) -> Tensor:
        """Whitened float32 rows."""
        return whitened(x, pool, self.whiten).float()

    def fit(self, x: Tensor, y: Tensor, classes: int, key: Hashable) -> Fitted:
        """`steps` batches, a new order in every pass, the last batch of a pass as it comes."""
        draws = generator("probe", key)
        weights = initial_weights((x.shape[1], self.hidden, self.hidden, classes), draws)
        adam = make_optimizer(weights, Opt("adam", lr=self.lr))
        for rows in islice(_batches(len(x), self.batch, draws), self.steps):
            for w in weights:
                w.requires_grad_(True)
            loss = F.cross_entropy(_logits(weights, x[rows]), y[rows])
            gradients = torch.autograd.grad(loss, weights)
            for w in weights:
                w.requires_grad_(False)
            adam.step(gradients)
        return lambda ask: F.log_softmax(_logits(weights, ask.float()).double(), 1)


def initial_weights(widths: tuple[int, ...], draws: torch.Generator) -> list[Tensor]:
    """PyTorch's default: weights and biases uniform within 1 / sqrt(number of inputs).

    >>> [tuple(w.shape) for w in initial_weights((8, 5, 3), torch.Generator())]
    [(5, 8), (5,), (3, 5), (3,)]
    """
    shapes = [s for inputs, outputs in pairwise(widths) for s in ((outputs, inputs), (outputs,))]
    fan_in = [inputs for inputs in widths[:-1] for _ in range(2)]
    return [
        torch.empty(shape).uniform_(-(inputs**-0.5), inputs**-0.5, generator=draws)
        for shape, inputs in zip(shapes, fan_in, strict=True)
    ]


def _logits(weights: list[Tensor], x: Tensor) -> Tensor:
    *hidden, last = zip(weights[::2], weights[1::2], strict=True)
    for weight, bias in hidden:
        x = F.linear(x, weight, bias).relu()
    return F.linear(x, *last)


def _batches(rows: int, size: int, draws: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.split(torch.randperm(rows, generator=draws), size)
