"""FedNTD: keep what the global model knows of the classes a sample does not belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True)
class FedNTD(Term):
    """Not-true distillation (Lee et al., NeurIPS 2022).

    With a the logits of the model in training, a_g of the received one, y the label::

        q(c)   = exp(a_c / tau) / sum_{c' != y} exp(a_c' / tau)   for c != y
        q_g(c) = the same of a_g, without gradient
        loss  += beta tau^2 mean_batch sum_{c != y} q_g(c) log(q_g(c) / q(c))

    Hyper-parameters: `beta` 1.0, `tau` 1.0 (the paper); FedBR tunes `beta` over {1.0, 0.1}.

    Deviations: none. tau^2, which keeps gradients of one size, is the published code's; at the
    default it is 1. The teacher runs in evaluation mode.

    Leaves the client: nothing more.

    >>> FedNTD(beta=0.1)
    FedNTD(beta=0.1, tau=1.0)
    """

    name: ClassVar[str] = "fedntd"
    family: ClassVar[str] = "drift correction"
    refuses: ClassVar[tuple[str, ...]] = ("fedcr",)  # whose logits are [n, S, K]
    beta: float = 1.0
    tau: float = 1.0

    def __post_init__(self):
        if self.tau <= 0:
            raise BadInput(f"fedntd divides by tau: make it positive, not {self.tau}")

    def loss(self, b, s):
        if not self.beta:
            return 0.0
        stage = s.net.logits
        with torch.no_grad():
            teacher = s.net(s.received, b.x, want=stage)[stage]
        found = not_true_divergence(b.out[stage] / self.tau, teacher / self.tau, b.y)
        return self.beta * self.tau**2 * found


def not_true_divergence(student, teacher, y):
    """KL(teacher || student) of logits [n, K] over the classes that are not y, mean over the batch.

    >>> two = torch.zeros(1, 3), torch.tensor([[9.0, 0.0, 0.0]])
    >>> float(not_true_divergence(*two, torch.tensor([0])))
    0.0
    """
    n, classes = student.shape
    others = ~F.one_hot(y, classes).bool()
    q, q_g = (a[others].view(n, classes - 1).log_softmax(1) for a in (student, teacher))
    return F.kl_div(q, q_g, reduction="batchmean", log_target=True)
