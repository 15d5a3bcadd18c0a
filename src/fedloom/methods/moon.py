"""MOON: contrast against the global and the previous local representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.site import Site
from fedloom.core.term import Batch, Term
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Linear, Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.methods.fedavg import FedAvg
from fedloom.models.layers import perceptron
from fedloom.ops.contrastive import pair_contrast


@register
@dataclass(frozen=True)
class ModelContrast(Term):
    """MOON's model-contrastive loss (Li et al., CVPR 2021, equation 3).

    Let z be the representation by the model in training, z_g by the received model, and z_p by the
    client's model at the end of its previous round::

        loss += mu * mean -log e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau})

    In a client's first round z_p = z_g, and the term has no gradient.

    Hyper-parameters: `mu` 1.0, from the paper's grid {0.1, 1, 5, 10}; `tau` 0.5.

    Deviations: z is what the network's own head reads (before anything that a term such as DBE
    inserts). The paper's networks, also those of its baselines, have a projection head there:
    `projection_head`, or MOON's `projection`.

    Leaves the client: nothing beyond what the method itself sends. The client keeps the extractor
    of its previous round.

    >>> (FedAvg() + ModelContrast(mu=5.0)).terms
    (ModelContrast(mu=5.0, tau=0.5),)
    """

    name: ClassVar[str] = "model_contrast"
    family: ClassVar[str] = "drift correction"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    keeps_what_it_sent: ClassVar[str] = "the next contrast's negative is the extractor it sent"
    # The grids of mu in the paper and in FedBR; tau is 0.5 in both, its range is ours.
    tunable: ClassVar[Tunable] = {"mu": Log(1e-2, 10), "tau": Linear(0.1, 1)}
    mu: float = 1.0
    tau: float = 0.5

    def __post_init__(self) -> None:
        if self.mu < 0 or self.tau <= 0:
            raise BadInput(
                f"model_contrast: mu is 0 or more and tau above 0, not {self.mu} and {self.tau}"
            )

    def loss(self, b: Batch, s: Site) -> Tensor:
        previous = s.own.get(self.name) or s.received
        z = b.out[s.net.representation].flatten(1)
        with torch.no_grad():
            z_g = _representation(s, s.received, b.x)
            z_p = _representation(s, previous, b.x)
        return self.mu * pair_contrast(z, z_g, z_p, 1 / self.tau)  # eq. (3)

    def finish(self, s: Site) -> State:
        extractor = set(s.net.path_to(s.net.representation))
        s.own[self.name] = {k: v for k, v in s.w.items() if stage_of(k) in extractor}
        return {}


def _representation(s: Site, w: Tree, x: Tensor) -> Tensor:
    stage = s.net.representation
    return s.net(w, x, want=stage)[stage].flatten(1)


@register
@dataclass(frozen=True)
class ProjectionHead(Term):
    """MOON's projection head (Li et al., CVPR 2021, section 3.3) for any method whose head is the
    network's own.

    A perceptron P between body and head, which is replaced by a linear layer of P's width. P(f(x))
    is the representation from then on. P is a part of the model like any other layer: shared,
    trained and decayed as the method says (`shared="* !head.*"` shares it).

    Hyper-parameters: `widths` of P's linear layers, with ReLU between them. FedBR gives MOON
    [256, 128]; MOON's own are the number of features, then 256, and all its baselines have them
    too. FedBR's Figure 6a adds [256, 256, 128] to FedAvg.

    Deviations: none.

    Leaves the client: P, where the method shares it.

    >>> (FedAvg() + ProjectionHead((64, 32))).terms
    (ProjectionHead(widths=(64, 32)),)
    """

    name: ClassVar[str] = "projection_head"
    family: ClassVar[str] = "representation"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    # They have put a head of their own on the body by then, or know the sizes of all layers.
    refuses: ClassVar[tuple[str, ...]] = (
        "dualfed",
        "fedcr",
        "fedetf",
        "fedrod",
        "pfedhn",
        "spherefed",
    )
    widths: tuple[int, ...] = (256, 128)

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise BadInput(
                f"projection_head: widths are one or more numbers of 1 or more, not {self.widths}"
            )

    def extend(self, net: Net, clients: int) -> None:
        features = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        with net.adding_for(METHOD):
            net.insert(self.name, nn.Sequential(nn.Flatten(), perceptron(features, *self.widths)))
            net.replace(net.logits, nn.Linear(self.widths[-1], classes))
        net.representation = net.feature


@register
def MOON(mu: float = 1.0, tau: float = 0.5, projection: tuple[int, ...] = ()) -> Method:
    """FedAvg + ModelContrast (Li et al., CVPR 2021); see `model_contrast`.

    `projection` gives the network a projection head of these widths, [256, 128] in FedBR's tables;
    see `projection_head`.

    >>> MOON().terms
    (ModelContrast(mu=1.0, tau=0.5),)
    >>> MOON(projection=(256, 128)).terms
    (ProjectionHead(widths=(256, 128)), ModelContrast(mu=1.0, tau=0.5))
    """
    network = FedAvg() + ProjectionHead(projection) if projection else FedAvg()
    return network + ModelContrast(mu, tau)
