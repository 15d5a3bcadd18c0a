"""LG-FedAvg: personal representations under a shared head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method):
    """Local representations, global classifier (Liang et al., 2020): the reverse of FedPer.

    Each round::

        client i  trains its own body and the received head together for E epochs
        server    head <- sum_i n_i head_i / sum_i n_i

    Hyper-parameters: `shared`, the pattern of the layers that are averaged; by default the head.
    (FedCR's code shares the last two fully connected layers.)

    Deviations: none.

    Leaves the client: the head.

    >>> LGFedAvg().shared
    'head.*'
    """

    name: ClassVar[str] = "lg_fedavg"
    family: ClassVar[str] = "personal layers"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    shared: str = "head.*"
