"""FedMix: mixup with other clients' data, of which only means are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedloom.core.term import Term
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

    which is global mixup's loss up to terms of second order in lam.

    Hyper-parameters: `lam` 0.1 (the paper: 0.05 CIFAR-10, 0.1 CIFAR-100, 0.2 FEMNIST; FedBR tunes
    over {0.01, 0.1, 0.2}, its code has 0.1); `means` 1: groups per client, which share all of its
    samples, so M is their number over `means`; `of` 10: the least samples in a group (FedBR's M).
    `per` "batch": one mean for the whole batch, "sample": one for each of it (FedBR).

    Deviations: the paper fixes M and lets a client send n_i / M means; here their number is fixed,
    and a large `means` gives the paper's with M = `of`. A client with fewer than `of` samples sends
    none, where a mean would be nearer to an image than was asked. Means are made and sent once,
    from images without augmentation; a client may draw its own.

    Leaves the client: `means` means of at least `of` training images and of their labels, with
    the numbers of samples in them, once.

    >>> FedMix(means=5).before
    ('means',)
    """

    name: ClassVar[str] = "fedmix"
    family: ClassVar[str] = "extra data"
    before: ClassVar[tuple[str, ...]] = ("means",)
    gathers: ClassVar[bool] = True
    # A balanced softmax gives probability 0 to classes that a mean may hold and its reader lacks.
    refuses: ClassVar[tuple[str, ...]] = ("fedcr", "mixup", "spherefed", "fedrod", "fedetf")
    lam: float = 0.1
    means: int = 1
    of: int = 10
    per: Literal["batch", "sample"] = "batch"

    def __post_init__(self):
        if not 0 <= self.lam < 1:
            raise BadInput(f"fedmix: lam is at least 0 and below 1, not {self.lam}")
        if self.of < 2 or self.means < 1:
            raise BadInput(
                f"fedmix: of is 2 or more, or images would be sent, and means is 1 or more;"
                f" not {self.of} and {self.means}"
            )

    def extend(self, net, clients):
        if not net.input_dtype.is_floating_point:
            raise BadInput("fedmix averages inputs, and this network reads token ids")

    def special(self, s):
        how = (self.means, self.of, s.data.classes, s.gen(self.name))
        return {self.name: mean_data(s.data.train, *how)}

    def send(self, r, cid):
        return broadcast_once.send(r, self.name, cid)

    def inputs(self, b, s):
        means = broadcast_once.received(s, self.name)
        if not self.lam or not means or not len(means["x"]):
            return
        at = (self.name, s.training)  # a second model's draws must not move the first one's
        if at not in s.memo:
            s.memo[at] = s.gen(at)
        count = len(b.x) if self.per == "sample" else 1
        i = torch.randint(len(means["x"]), (count,), generator=s.memo[at])
        s.memo[self.name] = b.target, means["x"][i]
        y = soft_labels(b.target, s.data.classes, b.x)
        b.target = (1 - self.lam) * y + self.lam * means["y"][i]  # CE is linear in it
        b.x = ((1 - self.lam) * b.x).requires_grad_()

    def loss(self, b, s):
        if self.name not in s.memo:
            return 0.0
        y, x_mean = s.memo.pop(self.name)
        ce = s.task.loss(b.out[s.net.logits], y)
        (slope,) = torch.autograd.grad(ce, b.x, create_graph=True)
        return self.lam * (slope * x_mean).sum()  # Proposition 1, third term

    def finish(self, s):
        return broadcast_once.keep(s, self.name)

    def aggregate(self, r):
        if r.plan.kind != "special":
            return {self.name: broadcast_once.mark_holders(r, self.name)}
        made = r.stack(self.name, "size") > 0  # [m, means]
        return {self.name: broadcast_once.start(r, {k: r.stack(self.name, k)[made] for k in "xy"})}
