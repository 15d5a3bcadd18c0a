"""FedBN: all layers are averaged, except BatchNorm's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedBN(Method):
    """Local batch normalisation against feature shift (Li et al., ICLR 2021).

    Each round::

        client i  trains the whole model for E epochs
        server    averages every tensor that does not belong to a BatchNorm layer

    Weights, biases and running statistics of BatchNorm layers stay with the client. The layers are
    found by their type, so a ResNet's `downsample.1` is not missed.

    Hyper-parameters: none.

    Deviations: the paper's Algorithm 1 and its program give every client the same weight
    (`weighting="uniform"`); here clients weigh by their samples, as in FedAvg.

    Leaves the client: the model without its BatchNorm layers.

    >>> FedBN().shared
    '* !@bn'
    """

    name: ClassVar[str] = "fedbn"
    family: ClassVar[str] = "personal layers"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "it is made for BatchNorm, by which the rows of a batch depend on each other"
    )
    shared: str = "* !@bn"

    def extend(self, net: Net, clients: int) -> None:
        if not net.match("@bn"):
            raise BadInput(
                "fedbn on a model without BatchNorm is fedavg; choose a model that has it,"
                " for instance resnet18 or mlp(norm=batch)"
            )
