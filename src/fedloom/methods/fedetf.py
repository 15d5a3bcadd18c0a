"""FedETF: one fixed simplex for a classifier, features projected and balanced to meet it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tunable import Linear, Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.balanced import log_prior
from fedloom.ops.simplex_etf import simplex_etf

ALL_BUT_SIMPLEX = "* !head.vertices"


class SimplexHead(nn.Module):
    """Cosines of features and the vertices of a simplex, times a trained temperature."""

    def __init__(self, classes: int, dims: int, beta: float) -> None:
        super().__init__()
        self.vertices = nn.Parameter(simplex_etf(classes, dims))
        self.beta = nn.Parameter(torch.tensor(beta))

    def forward(self, z: Tensor) -> Tensor:
        return self.beta * F.normalize(z, dim=1) @ self.vertices.T


@register
@dataclass(frozen=True, kw_only=True)
class FedETF(Method):
    """Neural-collapse inspired federated learning (Li et al., ICCV 2023).

    Features are u = g(f(x)) / |g(f(x))|, where g is a linear projection. The class vectors v_1..v_K
    are the vertices of a simplex, fixed and the same for all clients; the temperature beta is
    trained. Each round, N_c being the client's number of samples of class c::

        client i  f, g, beta: E epochs on the balanced feature loss
                  -log N_y^gamma e^{beta v_y'u} / sum_c N_c^gamma e^{beta v_c'u}
        server    f, g, beta <- sum_i n_i (.)_i / sum_i n_i
        personal  f, g, beta: another E epochs on the balanced loss; then, by plain cross-entropy,
                  `alternations` times `turn_epochs` epochs of v and as many of g

    Hyper-parameters: `gamma` 1.0; `beta` 1.0, where the temperature begins; `dim` of u, None for as
    many as the features have, and at least K. These are the published code's: `adapt_epochs` None,
    which is E; `alternations` 20 of `turn_epochs` 3; `simplex_lr` 0.1, without momentum and weight
    decay; `projection_lr` 0.05. `adapt_epochs=0, alternations=0` keeps the global model.

    Deviations: the run's decay acts on all learning rates, the last two included. A class that the
    client lacks has no part in its balanced softmax; in the published code it counts as one sample.

    Leaves the client: body, projection and temperature (and the simplex, which never changes).

    >>> [p.name for p in FedETF(alternations=1).adapt]
    ['whole', 'simplex', 'projection']
    """

    name: ClassVar[str] = "fedetf"
    family: ClassVar[str] = "fixed classifier"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    tunable: ClassVar[Tunable] = {"gamma": Linear(0, 1), "projection_lr": Log(5e-3, 0.5)}
    reveals: ClassVar[tuple[str, ...]] = ("class_weights",)
    against_example_noise: ClassVar[str] = (
        "the counts of all rows make the balanced softmax of each"
    )
    gamma: float = 1.0
    beta: float = 1.0
    dim: int | None = None
    adapt_epochs: int | None = None
    alternations: int = 20
    turn_epochs: int = 3
    simplex_lr: float = 0.1
    projection_lr: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise BadInput(f"gamma is 0 or more, not {self.gamma}")
        if self.beta <= 0:
            raise BadInput(f"beta must be more than 0, not {self.beta}")
        if min(self.adapt_epochs or 0, self.alternations, self.turn_epochs - 1) < 0:
            raise BadInput(
                "fedetf: adapt_epochs and alternations are 0 or more, turn_epochs 1 or more"
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(train=ALL_BUT_SIMPLEX),)

    @property
    def adapt(self) -> tuple[Phase, ...]:
        whole = Phase("whole", ALL_BUT_SIMPLEX, epochs=self.adapt_epochs)
        simplex = Phase(
            "simplex",
            "head.vertices",
            epochs=self.turn_epochs,
            lr=self.simplex_lr,
            optimizer="sgd",
            momentum=0.0,
            weight_decay=0.0,
        )
        projection = Phase(
            "projection", "projection.*", epochs=self.turn_epochs, lr=self.projection_lr
        )
        first = () if self.adapt_epochs == 0 else (whole,)
        return (*first, *(simplex, projection) * self.alternations)

    @property
    def head_pattern(self) -> str:
        return "head.vertices"

    def extend(self, net: Net, clients: int) -> None:
        width = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        dims = max(width, classes) if self.dim is None else self.dim
        if classes < 2 or dims < classes:
            raise BadInput(
                f"fedetf: a simplex needs two classes and as many dimensions, not dim={dims}"
                f" for {classes} classes"
            )
        net.insert("projection", nn.Sequential(nn.Flatten(), nn.Linear(width, dims)))
        net.replace("head", SimplexHead(classes, dims, self.beta))

    def loss(self, b: Batch, s: Site) -> Tensor:
        plain = s.phase.name in ("simplex", "projection", "tune")
        gamma = 0.0 if plain else self.gamma
        key = (self.name, gamma)
        if key not in s.memo:
            s.memo[key] = log_prior(s.counts, gamma)  # gamma log N_c
        return s.task.loss(b.out[s.net.logits] + s.memo[key], b.target)
