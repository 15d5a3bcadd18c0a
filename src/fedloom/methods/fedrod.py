"""Fed-RoD: a generic head trained by a balanced loss, a personal one on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State
from fedloom.core.tunable import Linear, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.balanced import log_prior


class ResidualHead(nn.Linear):
    """A linear head that sends no gradient to the layers below it; zero at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z.flatten(1).detach())


@register
@dataclass(frozen=True, kw_only=True)
class FedRoD(Method):
    """Federated robust decoupling (Chen and Chao, ICLR 2022, Fed-RoD with linear personal heads).

    Of the features z = f(x), the generic head makes the logits g = head(z) and the personal head
    the logits h = personal_head(z). Each round, N_c being the client's number of samples of class
    c::

        client i  every batch trains both:
                  f, head        on -log N_y^gamma e^{g_y} / sum_c N_c^gamma e^{g_c}  balanced risk
                  personal_head  on CE(g + h, y), with f and g held fixed            empirical risk
        server    f, head <- sum_i n_i (f_i, head_i) / sum_i n_i
        at a test the client's model predicts by g + h, the generic model by g

    The prediction of g alone is also scored, as the view `generic_head`.

    Hyper-parameters: `gamma` 1.0 (balanced softmax; 0 is plain cross-entropy).

    Deviations: the paper's other variant, in which a hyper-network makes the personal heads from
    class counts, is left out. Personal heads begin at zero, so that a newcomer predicts by the
    generic head. A class that the client does not have drops out of its balanced softmax, because
    N_c = 0.

    Leaves the client: the body and the generic head.

    >>> FedRoD().shared
    '* !personal_head.*'
    """

    name: ClassVar[str] = "fedrod"
    family: ClassVar[str] = "personal layers"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    # From plain cross-entropy to the balanced softmax.
    tunable: ClassVar[Tunable] = {"gamma": Linear(0, 1)}
    reveals: ClassVar[tuple[str, ...]] = ("class_weights",)
    against_example_noise: ClassVar[str] = (
        "the counts of all rows make the balanced softmax of each"
    )
    shared: str = "* !personal_head.*"
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise BadInput(f"gamma is 0 or more, not {self.gamma}")

    def extend(self, net: Net, clients: int) -> None:
        width = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        net.add("personal_head", ResidualHead(width, classes), reads=net.feature)

    @property
    def head_pattern(self) -> str:
        return "head.* personal_head.*"

    def loss(self, b: Batch, s: Site) -> Tensor:
        if self.name not in s.memo:
            s.memo[self.name] = log_prior(s.counts, self.gamma)
        g = b.out[s.net.logits]
        h = b.out["personal_head"]
        balanced_risk = s.task.loss(g + s.memo[self.name], b.target)
        empirical_risk = s.task.loss(g.detach() + h, b.target)
        return balanced_risk + empirical_risk

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        out = net(state["model"], x)
        return F.softmax(out[net.logits] + out["personal_head"], -1)

    def views(self, net: Net, state: State, x: Tensor) -> dict[str, Tensor]:
        """The prediction of the generic head alone."""
        g = net(state["model"], x, want=net.logits)[net.logits]
        return {"generic_head": F.softmax(g, -1)}
