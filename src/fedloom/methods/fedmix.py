"""FedMix: mixup with other clients' data, of which only means are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch, Term
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools import broadcast_once
from fedloom.method_tools.mean_data import mean_data
from fedloom.methods import register
from fedloom.ops.soft_labels import soft_labels


@register
@dataclass(frozen=True)
class FedMix(Term):
    """Mixup under mean-augmented federated learning (Yoon et al., ICLR 2021).

    ::

        before FL  every client sends the means of groups of its samples and of their labels;
                   the server sends all of them to everybody
        each step  (xbar, ybar) one of the means, x^ = (1 - lam) x
                   loss  = (1 - lam) CE(x^, y) + lam CE(x^, ybar)
                         + lam <grad_x CE(x^, y), xbar>                              Proposition 1

    This is the loss of mixup over all clients' data, up to terms of second order in lam.

    The first term is weighed by 1 - lam, so the real labels lose that share of their weight.

    Hyper-parameters: `lam` 0.1 (the paper: 0.05 for CIFAR-10, 0.1 for CIFAR-100, 0.2 for FEMNIST;
    FedBR tunes over {0.01, 0.1, 0.2}, and its code has 0.1). `means` 1 is the number of groups into
    which a client divides its n_i samples, so a mean is over M = n_i / `means` of them. `of` 10 is
    the smallest number of samples in a group (FedBR's M). `per` "batch" takes one mean for the
    whole batch, "sample" one for each of its samples (FedBR).

    Deviations: the paper fixes M and lets a client send n_i / M means. Here the number of means is
    fixed, because a server can check an upload only if it knows its size; `means` of at least the
    largest n_i / `of` gives the paper's with M = `of`. The default of one is the most private: the
    mean of all that a client has, which says little of an image. A client with fewer than `of`
    samples sends none, because a mean of so few would be nearer to an image than was asked for.
    Means are made and sent once, from images without augmentation; a client may draw its own.

    Leaves the client: `means` means of at least `of` training images and of their labels, with
    the numbers of samples in them, once.

    >>> FedMix(means=5).before
    ('means',)
    """

    name: ClassVar[str] = "fedmix"
    family: ClassVar[str] = "extra data"
    needs: ClassVar[tuple[Need, ...]] = ("linear_loss",)
    reveals: ClassVar[tuple[str, ...]] = ("row_means", "class_counts")
    against_client_noise: ClassVar[str] = (
        "which of its means hold rows is told by their sizes, and noise would hide that"
    )
    against_example_noise: ClassVar[str] = (
        "means of rows leave the client, which no clipped gradient bounds"
    )
    before: ClassVar[tuple[str, ...]] = ("means",)
    gathers: ClassVar[bool] = True
    # The losses of FedCR and SphereFed take hard labels. The balanced softmax of Fed-RoD and FedETF
    # gives probability 0 to a class that the client lacks, and the label of a mean may hold it.
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "mixup", "spherefed", "fedrod", "fedetf")
    # The paper and FedBR: 0.01 to 0.2.
    tunable: ClassVar[Tunable] = {"lam": Log(1e-2, 0.5)}
    lam: float = 0.1
    means: int = 1
    of: int = 10
    per: Literal["batch", "sample"] = "batch"

    def __post_init__(self) -> None:
        if not 0 <= self.lam < 1:
            raise BadInput(f"fedmix: lam is at least 0 and below 1, not {self.lam}")
        if self.of < 2 or self.means < 1:
            raise BadInput(
                f"fedmix: of is 2 or more, or images would be sent, and means is 1 or more;"
                f" not {self.of} and {self.means}"
            )

    def extend(self, net: Net, clients: int) -> None:
        if net.not_numbers:
            raise BadInput(f"fedmix averages inputs, and this network reads {net.not_numbers}")

    # ------------------------------------------------------------------ the means

    def special(self, s: Site) -> State:
        gen = s.gen(self.name)
        return {self.name: mean_data(s.data.train, self.means, self.of, s.data.classes, gen)}

    def send(self, r: Round, cid: int) -> State:
        return broadcast_once.send(r, self.name, cid)

    def finish(self, s: Site) -> State:
        return broadcast_once.keep(s, self.name)

    def aggregate(self, r: Round) -> State:
        if r.plan.kind != "special":
            return {self.name: broadcast_once.mark_holders(r, self.name)}
        not_empty = r.stack(self.name, "size") > 0  # [m, means]
        means = {
            "x": r.stack(self.name, "x")[not_empty],
            "y": r.stack(self.name, "y")[not_empty],
        }
        return {self.name: broadcast_once.start(r, means)}

    # ------------------------------------------------------------------ a local step

    def inputs(self, b: Batch, s: Site) -> None:
        """x^ = (1 - lam) x, and a label whose cross-entropy is Proposition 1's first two terms."""
        means = broadcast_once.received(s, self.name)
        if not self.lam or not means or not len(means["x"]):
            return
        key = (self.name, s.training)  # a second model's draws must not move the first one's
        if key not in s.memo:
            s.memo[key] = s.gen(key)
        count = len(b.x) if self.per == "sample" else 1
        chosen = torch.randint(len(means["x"]), (count,), generator=s.memo[key])
        x_mean, y_mean = means["x"][chosen], means["y"][chosen]

        s.memo[self.name] = (b.target, x_mean)  # for the third term, in `loss`
        y = soft_labels(b.target, s.data.classes, b.x)
        b.target = (1 - self.lam) * y + self.lam * y_mean  # cross-entropy is linear in the label
        b.x = ((1 - self.lam) * b.x).requires_grad_()

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        """Proposition 1's third term, lam <grad_x CE(x^, y), xbar>."""
        if self.name not in s.memo:
            return 0.0
        y, x_mean = s.memo.pop(self.name)
        ce = s.task.loss(b.out[s.net.logits], y)
        (slope,) = torch.autograd.grad(ce, b.x, create_graph=True)
        third_term: Tensor = self.lam * (slope * x_mean).sum()
        return third_term
