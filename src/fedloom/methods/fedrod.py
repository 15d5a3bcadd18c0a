"""Fed-RoD: a generic head trained by a balanced loss, a personal one on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.balanced import log_prior


class ResidualHead(nn.Linear):
    """A linear head that sends no gradient below itself; zero at the start."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, z):
        return super().forward(z.flatten(1).detach())


@register
@dataclass(frozen=True, kw_only=True)
class FedRoD(Method):
    """Federated robust decoupling (Chen and Chao, ICLR 2022, Fed-RoD with linear personal heads).

    Features z = f(x), generic logits g = head(z), personal logits h = personal_head(z). Each
    round, N_c the client's samples of class c::

        client i  f, head by -log N_y^gamma e^{g_y} / sum_c N_c^gamma e^{g_c}    balanced risk
                  personal_head by CE(g + h, y), f and g held fixed              empirical risk
                  both on every batch
        server    f, head <- sum_i n_i (f_i, head_i) / sum_i n_i
        at a test g + h; the generic model (and the view `generic_head`) g

    Hyper-parameters: `gamma` 1.0 (balanced softmax; 0 is plain cross-entropy).

    Deviations: the variant whose personal heads a hyper-network makes from class counts is not
    here. Personal heads begin at zero, so that a newcomer predicts by the generic head; a class
    the client lacks has no part in its balanced softmax, as N_c = 0 says.

    Leaves the client: body and generic head.

    >>> FedRoD().shared
    '* !personal_head.*'
    """

    name: ClassVar[str] = "fedrod"
    family: ClassVar[str] = "personal layers"
    shared: str = "* !personal_head.*"
    gamma: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if self.gamma < 0:
            raise BadInput(f"gamma is 0 or more, not {self.gamma}")

    def extend(self, net, clients):
        width, classes = net.shape_of(net.feature).numel(), net.shape_of(net.logits)[-1]
        net.add("personal_head", ResidualHead(width, classes), reads=net.feature)

    def loss(self, b, s):
        if self.name not in s.memo:
            s.memo[self.name] = log_prior(s.counts, self.gamma)
        g, h = b.out[s.net.logits], b.out["personal_head"]
        generic = s.task.loss(g + s.memo[self.name], b.target)
        return generic + s.task.loss(g.detach() + h, b.target)

    def predict(self, net, state, x):
        out = net(state["model"], x)
        return F.softmax(out[net.logits] + out["personal_head"], -1)

    def views(self, net, state, x):
        """The generic head alone."""
        return {"generic_head": F.softmax(net(state["model"], x, want=net.logits)[net.logits], -1)}
