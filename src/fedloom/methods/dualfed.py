"""DualFed: a shared representation before a projector, a personal one after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State
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

    The encoder f and a global classifier h_s on z = f(x) are shared. A projector g and a personal
    classifier h_p on u = g(z) stay with the client, and so do the running statistics of BatchNorm.
    Each round::

        stage 1   f, g, h_p: CE(h_p(u), y) + lam SupCon(u, y; tau), h_s frozen       eq. (6)-(8)
        stage 2   h_s: CE(h_s(z), y), all else frozen                               eq. (9), (10)
        server    f, h_s <- plain mean over clients
        at a test p = softmax h_p(u) + softmax h_s(z)                                     eq. (5)

    Hyper-parameters: `lam` and `tau` are 2.0 and 0.05 for Office-Home, 40 and 0.2 for PACS; those
    for DomainNet are not published. `depth` 2, `hidden` 256 and `batch_norm` describe the projector
    (Table 5). `training` is "stagewise", "simultaneous" (Table 4), or "alternating" epoch by epoch.
    `position="post"` puts h_s behind the projector, which is DualFed-P; together with
    `shared="* !personal_head.* !@stats"` it is DualFed-G (Table 6). `shared` gives the rows of
    Table 7: "* !projector.* !personal_head.* !head.* !@stats" the encoder only, the default,
    "* !@stats" all global, "* !personal_head.* !@stats" all but h_p, "" all personal.

    Deviations: the published code adds logits (`ensemble="logits"`), and its frozen encoder goes on
    updating BatchNorm statistics in stage 2 (`frozen_eval=False`). Losses are means over a batch,
    as in the code; eq. (6) and (9) are sums, and eq. (7) is over all samples. A sentence of section
    4.1 puts h_s after the projector and contradicts eq. (3), which is followed here.

    Leaves the client: encoder (without running statistics) and global classifier.

    >>> [p.name for p in DualFed().phases]
    ['personal', 'global']
    """

    name: ClassVar[str] = "dualfed"
    family: ClassVar[str] = "personal layers"
    refuses: ClassVar[tuple[str, ...]] = (
        "mixup",
        "fedmix",
    )  # SupCon takes a row to be of one class
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 1 or self.hidden < 1:
            raise BadInput(
                f"the projector's depth and width are 1 or more, not {self.depth} and {self.hidden}"
            )
        if self.lam < 0 or self.tau <= 0:
            raise BadInput(
                f"dualfed: lam is 0 or more and tau above 0, not {self.lam} and {self.tau}"
            )

    def extend(self, net: Net, clients: int) -> None:
        width = net.shape_of(net.feature).numel()
        classes = net.shape_of(net.logits)[-1]
        g = projector(width, self.hidden, self.depth, self.batch_norm)
        net.add("projector", g, reads=net.feature)
        net.add("personal_head", nn.Linear(width, classes), reads="projector")
        if self.position == "post":
            net.replace("head", nn.Linear(width, classes), reads="projector")

    # ------------------------------------------------------------------ local training

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.training == "simultaneous":
            return (Phase("both"),)
        epochs = 1 if self.training == "alternating" else None
        return (
            Phase("personal", "* !head.*", epochs=epochs),
            Phase("global", "head.*", epochs=epochs, frozen_eval=self.frozen_eval),
        )

    @property
    def head_pattern(self) -> str:
        return "head.* personal_head.*"

    def local(self, s: Site) -> None:
        repetitions = s.opt.epochs if self.training == "alternating" else 1
        for _ in range(repetitions):
            super().local(s)

    def loss(self, b: Batch, s: Site) -> Tensor:
        if s.phase.name == "personal":
            return self._personal_loss(b, s)
        if s.phase.name == "global":
            return self._global_loss(b, s)
        return self._personal_loss(b, s) + self._global_loss(b, s)

    def _personal_loss(self, b: Batch, s: Site) -> Tensor:
        """Stage 1: of f, g and h_p."""
        loss = s.task.loss(b.out["personal_head"], b.target)  # eq. (6)
        if self.lam:
            contrast = supervised_contrast(b.out["projector"], b.y, self.tau)  # eq. (7)
            loss = loss + self.lam * contrast  # eq. (8)
        return loss

    def _global_loss(self, b: Batch, s: Site) -> Tensor:
        """Stage 2: of h_s."""
        return s.task.loss(b.out["head"], b.target)  # eq. (9)

    # ------------------------------------------------------------------ prediction

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        out = net(state[METHOD], x)
        if self.ensemble == "logits":
            return F.softmax(out["head"] + out["personal_head"], -1)
        return (F.softmax(out["head"], -1) + F.softmax(out["personal_head"], -1)) / 2  # eq. (5)

    def views(self, net: Net, state: State, x: Tensor) -> dict[str, Tensor]:
        """Each head alone."""
        out = net(state[METHOD], x)
        return {
            "global_head": F.softmax(out["head"], -1),
            "personal_head": F.softmax(out["personal_head"], -1),
        }
