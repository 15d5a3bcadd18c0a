"""VHL: all clients also learn one labelled set of noise, and align their features with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.core.net import Net
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch, Term
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools.virtual_data import virtual_data
from fedloom.methods import register
from fedloom.ops.contrastive import supervised_contrast


@register
@dataclass(frozen=True)
class VHL(Term):
    """Virtual homogeneity learning (Tang et al., ICML 2022).

    An untrained generator makes the same labelled noise (x~, y~) at every site: the virtual data.
    Let phi(x) be the representation of x. Each local step takes a batch of real and a batch of
    virtual data::

        loss  = CE(x, y) + alpha CE(x~, y~)
              + lam SupCon over the rows phi(x), phi(x~) with labels y, y~ and temperature tau

    At every client the samples of a class thus gather around the noise of that class, which is the
    same everywhere.

    Hyper-parameters: `alpha` 1.0, `lam` 1.0, `tau` 0.07 (the published code). `per_class` 200
    virtual inputs of each class, which makes 2000 for CIFAR-10 and 20000 for CIFAR-100. `batch`:
    how many virtual inputs a step takes; None: as many as the run's batch size (the published code
    128, FedBR 32).

    Deviations: the generator is a small random upsampling network, or a perceptron where inputs are
    no images, instead of an untrained StyleGAN-v2, which is larger than most networks that would be
    trained with its noise. So VHL's rows in FedBR's Table 2 can be run (`per_class=200` or 2000 for
    CIFAR-10, 20 or 200 for CIFAR-100, `batch=32`), with other noise than they were. The noise has
    the labels of the real classes, as in the paper's objective; the published code gives it classes
    of its own and maps them back for the alignment. Its published command also holds the noise's
    features fixed in the alignment and adds 0.1 times a SupCon among the noise alone; here one
    SupCon over all rows moves both. The noise passes through the network separately and is
    normalised by its own batch statistics; BatchNorm's running statistics are of real inputs only.
    FedBR's version aligns logits, under labels that never match; here features are aligned, and
    labels match. Of a virtual data set larger than 64 MB every step makes the inputs it needs.

    Leaves the client: nothing beyond what the method itself sends. Nothing is downloaded either.

    >>> VHL().per_class
    200
    """

    name: ClassVar[str] = "vhl"
    family: ClassVar[str] = "extra data"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "its contrast compares the rows of a batch, so that a row changes the gradients of others"
    )
    # FedCR's logits are [n, S, K]; SphereFed's are cosines, too small a range for cross-entropy.
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "spherefed")
    tunable: ClassVar[Tunable] = {"alpha": Log(0.1, 10), "lam": Log(0.1, 10)}
    alpha: float = 1.0
    lam: float = 1.0
    tau: float = 0.07
    per_class: int = 200
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.lam < 0:
            raise BadInput(f"vhl: alpha and lam are 0 or more, not {self.alpha} and {self.lam}")
        if self.tau <= 0:
            raise BadInput(f"vhl divides by tau: make it positive, not {self.tau}")
        if self.per_class < 1 or (self.batch is not None and self.batch < 1):
            raise BadInput(
                f"vhl: per_class and batch are at least 1, not {self.per_class} and {self.batch}"
            )

    def extend(self, net: Net, clients: int) -> None:
        if net.not_numbers:
            raise BadInput(f"vhl makes real-valued noise, and this network reads {net.not_numbers}")

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if not self.alpha and not self.lam:
            return 0.0
        x_virtual, y_virtual = self._virtual_batch(b, s)
        statistics = {key: s.w[key].clone() for key in s.net.match("@stats")}
        virtual = s.net({**s.w, **statistics}, x_virtual, train=s.modes)
        loss: Tensor | float = 0.0
        if self.alpha:
            loss = self.alpha * s.task.loss(virtual[s.net.logits], y_virtual)
        if self.lam:
            phi = s.net.representation
            z = torch.cat([b.out[phi], virtual[phi]]).flatten(1)
            y = torch.cat([b.y, y_virtual])
            loss = loss + self.lam * supervised_contrast(z, y, self.tau)
        return loss

    def _virtual_batch(self, b: Batch, s: Site) -> tuple[Tensor, Tensor]:
        """Random virtual inputs and their labels, where and of which type those of `b` are."""
        data = virtual_data(s.net.shape, s.data.classes, self.per_class, s.plan.seed)
        # A second model draws from its own stream, so that its draws do not change the first one's.
        key = (self.name, s.training)
        if key not in s.memo:
            s.memo[key] = s.gen(key)
        idx = torch.randint(len(data), (self.batch or s.opt.batch,), generator=s.memo[key])
        return data.x(idx).to(b.x), data.y[idx].to(b.y)
