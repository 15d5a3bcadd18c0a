"""FedCR: stochastic features aligned class by class with a product of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fedloom.core.method import Method
from fedloom.core.phase import tuning
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.models.gaussian import SMALLEST, Gaussian, Sample
from fedloom.ops.gaussian import kl_diagonal, product_of_experts
from fedloom.ops.prototypes import class_sums


@register
@dataclass(frozen=True, kw_only=True)
class FedCR(Method):
    """Across-client common representation (Zhang et al., ICML 2023, Algorithm 1).

    The body ends in a Gaussian layer, p(z|x) = N(mu(x), sigma(x)^2); heads are personal. Each
    round, with a Gaussian N(mu_c, sigma_c^2) per class from the server (mu = 0, sigma = 1 first)::

        client i  E epochs on -log E_z p(y|z) + beta KL(N(mu_y, sigma_y^2) || p(z|x))      eq. (7)
                  per class the product of its samples' latest Gaussians                   eq. (8)
        server    body <- mean over the cohort
                  per class the product over clients and one prior N(0, 1)                 eq. (6)
                  a class nobody held keeps its Gaussian                                    line 16
        at a test head: `adapt_epochs` epochs on the frozen body; mean of p over S samples

    Hyper-parameters: `beta` 0.0005 (0.001 CIFAR-100 non-iid_2); `dim` V 256 (512 FMNIST and
    CIFAR-100); `samples` S 18; `tau` 1.0; `adapt_epochs` 10. `shared=""` is section 4.4: only
    Gaussians travel, bodies may differ. `sigma` fixes the standard deviation; 0, which needs
    beta = 0, is FedPer with one linear layer more.

    Deviations: eq. (9) writes the prior once per client, eq. (6) and the code once: once.
    `likelihood="mean"`: the code's mean of cross-entropies; `ensemble="logits"`: its averaged
    logits. tau scales a density and would cancel; here it weighs the clients' precisions against
    the prior's. The code also clips gradients at 10 (set `clip`).

    Leaves the client: the body, and per class the summed precisions and precision-weighted means
    of its features (zero for classes it lacks, which shows that it lacks them).

    >>> FedCR(shared="").shared
    ''
    """

    name: ClassVar[str] = "fedcr"
    family: ClassVar[str] = "representation"
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix", "fedbr")
    shared: str = "* !head.*"
    weighting: Literal["samples", "uniform"] = "uniform"
    beta: float = 0.0005
    dim: int = 256
    samples: int = 18
    tau: float = 1.0
    sigma: float | None = None
    likelihood: Literal["expected", "mean"] = "expected"
    ensemble: Literal["probabilities", "logits"] = "probabilities"
    adapt_epochs: int = 10

    def __post_init__(self):
        super().__post_init__()
        if self.dim < 1 or self.samples < 1:
            raise BadInput(f"dim and samples are 1 or more, not {self.dim} and {self.samples}")
        if self.beta < 0 or self.tau <= 0 or (self.sigma or 0) < 0:
            raise BadInput("fedcr: beta and sigma are 0 or more, tau is above 0")
        if self.sigma == 0 and self.beta:
            raise BadInput("sigma=0 leaves no Gaussian to align with; set beta=0 too")

    @property
    def adapt(self):
        return tuning("head.*", self.adapt_epochs)

    def extend(self, net, clients):
        if "gauss" in net.reads:
            raise BadInput("fedcr adds its Gaussian layer itself; build the model without gaussian")
        width, classes = net.shape_of(net.feature).numel(), net.shape_of(net.logits)[-1]
        net.insert("gauss", Gaussian(width, self.dim, self.sigma))
        net.insert("sample", Sample(self.samples))
        net.replace("head", nn.Linear(self.dim, classes))

    def server_init(self, r):
        shape = r.net.shape_of(r.net.logits)[-1], self.dim
        prior = {"mu": torch.zeros(shape), "sigma": torch.ones(shape)}  # line 1
        return {**super().server_init(r), self.name: prior}

    def loss(self, b, s):
        mu, sigma = b.out["gauss"].unbind(1)  # [n, V] each
        self._remember(s, b.idx, mu.detach(), sigma.detach())
        loss = self._misfit(b.out["head"], b.target)
        if self.beta:
            given = s.down[self.name]
            kl = kl_diagonal(given["mu"][b.y], given["sigma"][b.y], mu, sigma)
            loss = loss + self.beta * kl.mean()  # eq. (7)
        return loss

    def _misfit(self, logits, y):
        """-log E_z p(y|z) from logits [n, S, K]; or the mean over z of -log p(y|z)."""
        log_p = logits.log_softmax(-1)
        at_y = log_p.gather(-1, y[:, None, None].expand(-1, log_p.shape[1], 1)).squeeze(-1)
        if self.likelihood == "mean":
            return -at_y.mean()
        return (math.log(at_y.shape[1]) - at_y.logsumexp(1)).mean()

    def _remember(self, s, idx, mu, sigma):
        """The latest Gaussian of every sample: later epochs overwrite earlier ones."""
        memory, precision = self._memory(s), sigma.clamp_min(SMALLEST) ** -2
        memory[0, idx], memory[1, idx] = precision, precision * mu

    def _memory(self, s):
        """Precisions and precision-weighted means [2, n, V]; zero: no Gaussian seen yet."""
        if self.name not in s.memo:
            like = s.w["gauss.fc.weight"]
            s.memo[self.name] = like.new_zeros(2, len(s.data.train), self.dim)
        return s.memo[self.name]

    def finish(self, s):
        y, k, memory = s.data.train.y.to(s.device), s.data.classes, self._memory(s)
        product = {  # eq. (8)
            "precision": class_sums(memory[0], y, k)[0],
            "precision_mean": class_sums(memory[1], y, k)[0],
        }
        return {**super().finish(s), self.name: product}

    def aggregate(self, r):
        found, old = r.sum(self.name), r.server[self.name]
        experts = {k: self.tau * v for k, v in found.items()}
        mu, sigma = product_of_experts(**experts)  # eq. (6)
        held = found["precision"].sum(1, keepdim=True) > 0
        new = {
            "mu": torch.where(held, mu, old["mu"]),  # line 16
            "sigma": torch.where(held, sigma, old["sigma"]),
        }
        return {**super().aggregate(r), self.name: new}

    def predict(self, net, state, x):
        logits = net(state["model"], x, want="head")["head"]  # [n, S, K]
        if self.ensemble == "logits":
            return F.softmax(logits.mean(1), -1)
        return F.softmax(logits, -1).mean(1)
