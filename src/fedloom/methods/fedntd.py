"""FedNTD: keep what the global model knows of the classes a sample does not belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch, Term
from fedloom.core.tunable import Linear, Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True)
class FedNTD(Term):
    """Not-true distillation (Lee et al., NeurIPS 2022).

    Let a be the logits of the model in training, a_g those of the received model, and y the label
    of a sample. The softmax is taken over the classes that are not y::

        q(c)   = exp(a_c / tau) / sum_{c' != y} exp(a_c' / tau)   for c != y
        q_g(c) = the same of a_g, without gradient
        loss  += beta tau^2 mean_batch sum_{c != y} q_g(c) log(q_g(c) / q(c))

    Hyper-parameters: `beta` 1.0 and `tau` 1.0 (the paper); FedBR tunes `beta` over {1.0, 0.1}.

    Deviations: none. The factor tau^2, which makes the size of the gradient independent of tau, is
    from the published code; at the default it is 1. The received model, the teacher, runs in
    evaluation mode.

    Leaves the client: nothing beyond what the method itself sends.

    >>> FedNTD(beta=0.1)
    FedNTD(beta=0.1, tau=1.0)
    """

    name: ClassVar[str] = "fedntd"
    family: ClassVar[str] = "drift correction"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    refuses: ClassVar[tuple[str, ...]] = ("fedcr",)  # its logits are [n, S, K], one set per draw
    tunable: ClassVar[Tunable] = {"beta": Log(0.05, 5), "tau": Linear(1, 5)}
    beta: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise BadInput(f"fedntd divides by tau: make it positive, not {self.tau}")

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if not self.beta:
            return 0.0
        a = b.out[s.net.logits]
        with torch.no_grad():
            a_g = s.net(s.received, b.x, want=s.net.logits)[s.net.logits]
        divergence = not_true_divergence(a / self.tau, a_g / self.tau, b.y)
        return self.beta * self.tau**2 * divergence


def not_true_divergence(student: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
    """KL(teacher || student) of logits [n, K] over the classes that are not y, mean over the batch.

    The label's own logit has no part in it:

    >>> student, teacher = torch.zeros(1, 3), torch.tensor([[9.0, 0.0, 0.0]])
    >>> float(not_true_divergence(student, teacher, torch.tensor([0])))
    0.0
    """
    n, classes = student.shape
    others = torch.arange(classes - 1, device=y.device).expand(n, -1)
    not_true = others + (others >= y[:, None])  # [n, K - 1], the classes without y
    log_q = student.gather(1, not_true).log_softmax(1)
    log_q_g = teacher.gather(1, not_true).log_softmax(1)
    return F.kl_div(log_q, log_q_g, reduction="batchmean", log_target=True)
