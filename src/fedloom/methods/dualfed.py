"""DualFed: a shared representation before a projector, a personal one after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import nn

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.contrastive import supervised_contrast


def projector(width: int, hidden: int, depth: int, batch_norm: bool) -> nn.Sequential:
    """`depth` linear layers, ReLU and BatchNorm between them, BatchNorm last."""
    sizes = [width, *[hidden] * (depth - 1), width]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if i < depth - 1:
            layers.append(nn.ReLU())
        if batch_norm:
            layers.append(nn.BatchNorm1d(b))
    return nn.Sequential(*layers)


@register
@dataclass(frozen=True, kw_only=True)
class DualFed(Method):
    """Hierarchical representations (Zhu et al., ACM MM 2024, section 4).

    Encoder f and global classifier h_s on z = f(x) are shared; projector g and personal
    classifier h_p on u = g(z) stay, and so do running BatchNorm statistics. Each round::

        stage 1   f, g, h_p: CE(h_p(u), y) + lam SupCon(u, y; tau), h_s frozen       eq. (6)-(8)
        stage 2   h_s: CE(h_s(z), y), all else frozen                               eq. (9), (10)
        server    f, h_s <- plain mean over clients
        at a test p = softmax h_p(u) + softmax h_s(z)                                     eq. (5)

    Hyper-parameters: `lam`, `tau`: 2.0 and 0.05 (Office-Home), 40 and 0.2 (PACS); those of
    DomainNet are not published. `depth` 2, `hidden` 256, `batch_norm`: the projector (Table 5).
    `training` "stagewise", "simultaneous" (Table 4), or "alternating" epoch by epoch.
    `position="post"` puts h_s behind the projector: DualFed-P; with
    `shared="* !personal_head.* !@stats"` DualFed-G (Table 6). Rows of Table 7 by `shared`:
    "* !projector.* !personal_head.* !head.* !@stats" encoder only, the default,
    "* !@stats" all global, "* !personal_head.* !@stats" all but h_p, "" all personal.

    Deviations: `ensemble="logits"`: the code adds logits; `frozen_eval=False`: its frozen encoder
    goes on updating BatchNorm statistics in stage 2. Losses are means over a batch, as in the
    code; eq. (6) and (9) are sums, eq. (7) is over all samples. The sentence of section 4.1 that
    puts h_s after the projector contradicts eq. (3): before it is.

    Leaves the client: encoder (without running statistics) and global classifier.

    >>> [p.name for p in DualFed().phases]
    ['personal', 'global']
    """

    name: ClassVar[str] = "dualfed"
    family: ClassVar[str] = "personal layers"
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix")
    shared: str = "* !projector.* !personal_head.* !@stats"
    weighting: Literal["samples", "uniform"] = "uniform"
    lam: float = 2.0
    tau: float = 0.05
    depth: int = 2
    hidden: int = 256
    batch_norm: bool = True
    position: Literal["pre", "post"] = "pre"
    training: Literal["stagewise", "simultaneous", "alternating"] = "stagewise"
    ensemble: Literal["probabilities", "logits"] = "probabilities"
    frozen_eval: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.depth < 1 or self.hidden < 1:
            raise BadInput(
                f"the projector's depth and width are 1 or more, not {self.depth} and {self.hidden}"
            )
        if self.lam < 0 or self.tau <= 0:
            raise BadInput(
                f"dualfed: lam is 0 or more and tau above 0, not {self.lam} and {self.tau}"
            )

    @property
    def phases(self):
        if self.training == "simultaneous":
            return (Phase("both"),)
        once = 1 if self.training == "alternating" else None
        return (
            Phase("personal", "* !head.*", epochs=once),
            Phase("global", "head.*", epochs=once, frozen_eval=self.frozen_eval),
        )

    def local(self, s):
        for _ in range(s.opt.epochs if self.training == "alternating" else 1):
            super().local(s)

    def extend(self, net, clients):
        width, classes = net.shape_of(net.feature).numel(), net.shape_of(net.logits)[-1]
        made = projector(width, self.hidden, self.depth, self.batch_norm)
        net.add("projector", made, reads=net.feature)
        net.add("personal_head", nn.Linear(width, classes), reads="projector")
        if self.position == "post":
            net.replace("head", nn.Linear(width, classes), reads="projector")

    def loss(self, b, s):
        phase, loss = s.phase.name, 0.0
        if phase != "global":
            loss = s.task.loss(b.out["personal_head"], b.target)  # eq. (6)
            if self.lam:
                contrast = supervised_contrast(b.out["projector"], b.y, self.tau)
                loss = loss + self.lam * contrast  # eq. (7), (8)
        if phase != "personal":
            loss = loss + s.task.loss(b.out["head"], b.target)  # eq. (9)
        return loss

    def predict(self, net, state, x):
        out = net(state["model"], x)
        if self.ensemble == "logits":
            return F.softmax(out["head"] + out["personal_head"], -1)
        return (F.softmax(out["head"], -1) + F.softmax(out["personal_head"], -1)) / 2  # eq. (5)

    def views(self, net, state, x):
        """Each head alone."""
        out = net(state["model"], x)
        heads = {"global_head": "head", "personal_head": "personal_head"}
        return {name: F.softmax(out[stage], -1) for name, stage in heads.items()}
