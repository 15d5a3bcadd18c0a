"""What somebody may bring along in a file: a method, networks, data, a partition, an augmentation.

Tests give it to processes of their own (`--import own_things.py`), so that it is registered
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

import fedloom as fl
from fedloom.data import augmentations


@fl.register
@dataclass(frozen=True, kw_only=True)
class SmallHeads(fl.Method):
    """FedPer whose personal heads are kept small (nobody, 2026)."""

    name: ClassVar[str] = "small_heads"
    family: ClassVar[str] = "personal layers"
    shared: str = "* !head.*"
    mu: float = 0.01

    def grads(self, g: Any, s: Any) -> Any:
        return {k: v + self.mu * s.w[k] if k.startswith("head.") else v for k, v in g.items()}


class Net(nn.Module):
    """A network that learns from the number of classes alone."""

    def __init__(self, classes: int, width: int = 6) -> None:
        super().__init__()
        self.body = nn.Linear(64, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.body(x.flatten(1))))


@fl.register_model
def wide(classes: int) -> Net:
    """The same network, by name."""
    return Net(classes, width=32)


@fl.register_data
def two_lines(sites: int = 3, rows: int = 40) -> fl.Source:
    """Points of a plane on either side of a line."""
    x = np.random.default_rng(0).normal(size=(sites * rows, 2)).astype(np.float32)
    return fl.Source.from_arrays(x, (x[:, 0] > 0).astype(int), user=np.arange(len(x)) % sites)


@fl.register_data
def divided_lines(sites: int = 3) -> fl.FederatedData:
    """The same, divided already."""
    return fl.federate(two_lines(sites), "by_user")


@fl.register_partition
def every_nth(*, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Row i goes to client i mod N."""
    return [np.arange(i, len(labels), clients) for i in range(clients)]


@augmentations
def darken(by: float = 0.5) -> Any:
    """All grey values times `by`, for every second image at random."""

    def augment(x: Tensor, gen: Generator) -> Tensor:
        chosen = torch.rand(len(x), 1, 1, 1, generator=gen) < 0.5
        return torch.where(chosen, x * by, x.float()).to(x.dtype)

    return augment
