"""FedSR: stochastic features kept simple by two regularisers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.phase import Phase, tuning
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.models.gaussian import SMALLEST, Gaussian, Sample
from fedloom.ops.gaussian import kl_diagonal


class ClassPrior(nn.Module):
    """r(z|y): one trainable diagonal Gaussian per class, labels [n] -> [n, 2, V]."""

    def __init__(self, classes: int, dims: int, scaled: bool) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, dims))
        self.rho = nn.Parameter(torch.ones(classes, dims))
        if scaled:
            self.scale = nn.Parameter(torch.ones(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.mean)
        nn.init.ones_(self.rho)

    def forward(self, y: Tensor) -> Tensor:
        deviation = F.softplus(self.rho[y]).clamp_min(SMALLEST)
        return torch.stack([self.mean[y], deviation], dim=1)


@register
@dataclass(frozen=True, kw_only=True)
class FedSR(Method):
    """A simple representation for domain generalization (Nguyen et al., NeurIPS 2022).

    The body ends in a Gaussian layer, p(z|x) = N(mu(x), sigma(x)^2), and the head reads one draw z
    of it. r(z|y), a Gaussian per class, is trained and averaged like the model. Each round::

        client i  E epochs on CE(head(z), y)
                    + l2  ||z||                               L2R: L2 regularisation
                    + cmi KL(p(z|x) || r(z|y))                CMI: an upper bound of I(x, z | y)
        server    model and r <- sum_i n_i (.)_i / sum_i n_i
        at a test the mean of the probabilities over `samples` draws of z

    FedSR-FT, a rival in FedCR's tables, also trains the head for 10 epochs before the test
    (`adapt_epochs=10`).

    Hyper-parameters: `l2` 0.01 and `cmi` 0.0005 as in the published code (FedCR tuned them to 0.01
    and 0.001, for CIFAR-100 to 0.001 and 0.001). `dim`, the dimension V of z, 256 as in FedCR (512
    there on FMNIST and CIFAR-100, 512 in the published code). `samples` 20 as in the published code
    (FedCR: 1). `adapt_epochs` 0.

    Deviations: the paper squares the norm (`norm="squared"`); the published `l2` was chosen for the
    plain one, and on the square it is many times as strong, so the plain norm is the default. In
    the published code r stays at the client (`shared="* !prior.*"`), all clients have the same
    weight (`weighting="uniform"`), and p(z|x) is multiplied by a trained number before the
    divergence (`scaled=True`), and clients keep their momentum over rounds (`keep_state=True`).
    Both regularisers are means over the samples of a batch; FedCR's code takes one norm of the
    whole batch.

    Leaves the client: the model and r.

    >>> FedSR(adapt_epochs=10).adapt[0].train
    'head.*'
    """

    name: ClassVar[str] = "fedsr"
    family: ClassVar[str] = "representation"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix")
    # FedCR: 0.001 to 0.01, and 0.001.
    tunable: ClassVar[Tunable] = {"l2": Log(1e-4, 0.1), "cmi": Log(1e-5, 1e-2)}
    l2: float = 0.01
    cmi: float = 0.0005
    dim: int = 256
    samples: int = 20
    norm: Literal["plain", "squared"] = "plain"
    scaled: bool = False
    adapt_epochs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim < 1 or self.samples < 1:
            raise BadInput(f"dim and samples are 1 or more, not {self.dim} and {self.samples}")
        if self.l2 < 0 or self.cmi < 0:
            raise BadInput(f"l2 and cmi are 0 or more, not {self.l2} and {self.cmi}")

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning("head.*", self.adapt_epochs)

    def extend(self, net: Net, clients: int) -> None:
        if "gauss" in net.reads:
            raise BadInput("fedsr adds its Gaussian layer itself; build the model without gaussian")
        width = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        net.insert("gauss", Gaussian(width, self.dim))
        net.insert("sample", nn.Sequential(Sample(1), nn.Flatten()))  # [n, V]
        net.replace("head", nn.Linear(self.dim, classes))
        net.add("prior", ClassPrior(classes, self.dim, self.scaled), reads=None)

    def loss(self, b: Batch, s: Site) -> Tensor:
        loss = super().loss(b, s)
        if self.l2:
            loss = loss + self.l2 * self._norms(b.out["sample"]).mean()
        if self.cmi:
            loss = loss + self.cmi * self._divergences(b, s).mean()
        return loss

    def _norms(self, z: Tensor) -> Tensor:
        """L2R of every sample [n]."""
        return z.pow(2).sum(1) if self.norm == "squared" else z.norm(dim=1)

    def _divergences(self, b: Batch, s: Site) -> Tensor:
        """CMI of every sample [n]: KL(p(z|x) || r(z|y))."""
        gaussian = b.out["gauss"] * (s.w["prior.scale"] if self.scaled else 1.0)
        mean_p, std_p = gaussian.unbind(1)
        mean_r, std_r = s.net.stage(s.w, "prior", b.y).unbind(1)
        return kl_diagonal(mean_p, std_p, mean_r, std_r)

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        w = state["model"]
        gaussian = net(w, x, want="gauss")  # computed once; every draw begins from it
        draws = []
        for _ in range(self.samples):
            logits = net(w, x, want=net.logits, given=gaussian)[net.logits]
            draws.append(F.softmax(logits, -1))
        return sum(draws, start=torch.zeros_like(draws[0])) / self.samples
