"""DualFed: a shared representation before a projector, a personal one after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Phase
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.models.projector import PROJECTOR, projector
from fedloom.ops.contrastive import supervised_contrast


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

    On a network that has a projector (`resnet18(projector=256)`), that one is g; otherwise DualFed
    adds it. The paper gives every method it compares with that network and local running statistics
    (section 5.3): the projector belongs to the representation, and the head alone is the
    classifier. So `fedavg(shared='* !@stats')`, `fedper(shared='* !head.* !@stats')`,
    `fedrep(shared='* !head.* !@stats', adapt_epochs=0)`, `fedrod(shared='* !personal_head.*
    !@stats')`, `spherefed(shared='* !@stats')` and `fedetf(shared='* !@stats')`; `local`,
    `lg_fedavg`, `fedbn` and `fedproto` keep the statistics anyway.

    Hyper-parameters: `lam` and `tau` are 2.0 and 0.05 for Office-Home, 40 and 0.2 for PACS; those
    for DomainNet are not published. `depth` 2, `hidden` 256 and `batch_norm` describe the projector
    that is added (Table 5). `training` is "stagewise", "simultaneous" (Table 4), or "alternating"
    epoch by epoch. `position="post"` puts h_s behind the projector, which is DualFed-P; together
    with `shared="* !personal_head.* !@stats"` it is DualFed-G (Table 6). `shared` gives the rows of
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
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "its contrast compares the rows of a batch, so that a row changes the gradients of others"
    )
    refuses: ClassVar[tuple[str, ...]] = (
        "mixup",
        "fedmix",
    )  # SupCon takes a row to be of one class
    # Around 2 and 40, 0.05 and 0.2; its rate is 0.01.
    tunable: ClassVar[Tunable] = {"lr": Log(1e-3, 0.3), "lam": Log(0.5, 100), "tau": Log(0.02, 0.5)}
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
        if PROJECTOR in net.reads:
            self._use_projector_of(net)
        else:
            width = net.shape_of(net.feature).numel()
            g = projector(width, self.hidden, self.depth, self.batch_norm)
            net.add(PROJECTOR, g, reads=net.feature)
        classes = net.shape_of(net.logits)[-1]
        width = net.shape_of(PROJECTOR).numel()
        net.add("personal_head", nn.Linear(width, classes), reads=PROJECTOR)
        if self.position == "post" and net.reads["head"] != PROJECTOR:
            net.replace("head", nn.Linear(width, classes), reads=PROJECTOR)

    def _use_projector_of(self, net: Net) -> None:
        """Take the network's projector for g, and have its head read the encoder."""
        defaults = (DualFed.depth, DualFed.hidden, DualFed.batch_norm)
        if (self.depth, self.hidden, self.batch_norm) != defaults:
            raise BadInput(
                "dualfed: depth, hidden and batch_norm describe a projector that dualfed adds, and"
                " this network has one; leave them out, or build the model without projector"
            )
        encoder = net.reads[PROJECTOR]
        assert encoder is not None  # a stage on the way to the head
        net.feature = net.representation = encoder
        if self.position == "pre":
            net.reconnect("head", reads=encoder)

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
