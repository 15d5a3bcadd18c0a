"""VHL: all clients also learn one labelled set of noise, and align their features with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.method_tools.virtual_data import virtual_data
from fedloom.methods import register
from fedloom.ops.contrastive import supervised_contrast


@register
@dataclass(frozen=True)
class VHL(Term):
    """Virtual homogeneity learning (Tang et al., ICML 2022).

    An untrained generator makes the same labelled noise (x~, y~) at every site. Each local step,
    with a batch of it and phi the representation::

        loss  = CE(x, y) + alpha CE(x~, y~)
              + lam SupCon over the rows phi(x), phi(x~) with labels y, y~, temperature tau

    so that samples of a class meet around that class's noise, whatever the client.

    Hyper-parameters: `alpha` 1.0, `lam` 1.0, `tau` 0.07 (the published code); `per_class` 200
    virtual inputs (2000 for CIFAR-10, 20000 for CIFAR-100); `batch` virtual inputs per step, None:
    as many as the run's batch (the published code 128, FedBR 32).

    Deviations: the generator is a small random upsampling network, or a perceptron where inputs are
    no images, instead of an untrained StyleGAN-v2. Noise has the labels of the real classes, as the
    paper's objective; the code gives it further classes, and shifts them back for the alignment.
    Noise passes the network separately, normalised by its own batch statistics, and BatchNorm's
    running ones are of real inputs only. FedBR's version aligns logits under labels that never
    match; here features and labels do. A set of more than 64 MB is made step by step.

    Leaves the client: nothing more; nothing comes down either.

    >>> VHL().per_class
    200
    """

    name: ClassVar[str] = "vhl"
    family: ClassVar[str] = "extra data"
    # FedCR's logits are [n, S, K], SphereFed's are cosines, whose cross-entropy says little.
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "spherefed")
    alpha: float = 1.0
    lam: float = 1.0
    tau: float = 0.07
    per_class: int = 200
    batch: int | None = None

    def __post_init__(self):
        if self.alpha < 0 or self.lam < 0:
            raise BadInput(f"vhl: alpha and lam are 0 or more, not {self.alpha} and {self.lam}")
        if self.tau <= 0:
            raise BadInput(f"vhl divides by tau: make it positive, not {self.tau}")
        if self.per_class < 1 or (self.batch is not None and self.batch < 1):
            raise BadInput(
                f"vhl: per_class and batch are at least 1, not {self.per_class} and {self.batch}"
            )

    def extend(self, net, clients):
        if not net.input_dtype.is_floating_point:
            raise BadInput("vhl makes real-valued noise, and this network reads token ids")

    def loss(self, b, s):
        if not self.alpha and not self.lam:
            return 0.0
        x, y = self._noise(b, s)
        statistics = {key: s.w[key].clone() for key in s.net.match("@stats")}
        out = s.net({**s.w, **statistics}, x, train=s.modes)
        loss = self.alpha * s.task.loss(out[s.net.logits], y) if self.alpha else 0.0
        if self.lam:
            stage = s.net.representation
            z = torch.cat([b.out[stage], out[stage]]).flatten(1)
            loss = loss + self.lam * supervised_contrast(z, torch.cat([b.y, y]), self.tau)
        return loss

    def _noise(self, b, s):
        """A batch of virtual inputs and their labels."""
        data = virtual_data(s.net.shape, s.data.classes, self.per_class, s.plan.seed)
        at = (self.name, s.training)  # a second model's draws must not move the first one's
        if at not in s.memo:
            s.memo[at] = s.gen(at)
        i = torch.randint(len(data), (self.batch or s.opt.batch,), generator=s.memo[at])
        return data.x(i).to(b.x), data.y[i].to(b.y)
