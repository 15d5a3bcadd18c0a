"""FedAvg: one model, averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedloom.core.method import Method
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging (McMahan et al., AISTATS 2017).

    Each round::

        server    sends w to the cohort
        client i  w_i <- E epochs of SGD on its own data, from w
        server    w <- sum_i n_i w_i / sum_i n_i

    Hyper-parameters: `weighting` "samples" (the paper) weighs clients by n_i, "uniform" gives all
    of them the same weight. `server_lr` 1.0 moves the server's model all the way to the mean.

    Deviations: BatchNorm statistics are averaged with the weights, as part of the model
    (`shared="* !@stats"` keeps them with the clients).

    Leaves the client: the whole model.

    >>> FedAvg().shared
    '*'
    """

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "baseline"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
