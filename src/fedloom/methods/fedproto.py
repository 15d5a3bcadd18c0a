"""FedProto: clients exchange class prototypes and keep their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.prototypes import class_sums


@register
@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Federated prototype learning across heterogeneous clients (Tan et al., AAAI 2022).

    f is the network up to its raw representation, which has d dimensions. No weight is shared; the
    server holds a prototype c_k [d] of every class that some client has had so far. Each round::

        client i  its own model: E epochs on CE(x, y) + lam MSE(f(x), c_y)
                    (no second term where the server has no c_y yet)
                  c_ik = mean of the trained f over its n_ik samples of class k
        server    c_k <- sum_i n_ik c_ik / sum_i n_ik
                    (a class that no participant holds keeps its c_k)
        at a test the class of the nearest prototype, argmin_k |f(x) - c_k|

    Clients may have different networks, as long as d is the same.

    Hyper-parameters: `lam` 1.0 (0.1 for CIFAR-10). `predictor` "prototype" predicts by the nearest
    prototype, "classifier" by the client's own head; the other of the two is scored as a view.
    `align` "global" is the method above; with "local" the prototypes are the client's own (in
    training those of its last round) and nothing is communicated. Appendix C.5 of FedPAC compares
    these two with `predictor="classifier"`, as FedProto-G and FedProto-L.

    Deviations: every sample's features are pulled towards the prototype, as in the published code;
    the paper's regulariser pulls the class means. The paper's mean over clients has one more factor
    1 / (number of clients with class k), which would shrink prototypes towards zero; it is left
    out. The published code's mean gives all clients with class k the same weight
    (`weighting="uniform"`), and its prototypes are means over the last local epoch, each batch
    before its step. Probabilities are softmax(-|f(x) - c_k|^2 / 2) over the classes with a
    prototype; before there are prototypes, the head predicts.

    Leaves the client: sums of features per class and class counts (which reveal its classes).

    >>> FedProto(align="local", predictor="classifier").shared
    ''
    """

    name: ClassVar[str] = "fedproto"
    family: ClassVar[str] = "representation"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ("class_means", "class_counts")
    against_example_noise: ClassVar[str] = (
        "sums of its classes' features leave the client, which no clipped gradient bounds"
    )
    passes_on_average: ClassVar[bool] = True
    # A mixture of two classes has no prototype; control variates correct shared weights only.
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix", "control_variates")
    tunable: ClassVar[Tunable] = {"lam": Log(1e-2, 10)}
    shared: str = ""
    lam: float = 1.0
    align: Literal["global", "local"] = "global"
    predictor: Literal["prototype", "classifier"] = "prototype"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise BadInput(f"lam is 0 or more, not {self.lam}")
        if self.align not in ("global", "local"):
            raise BadInput(f"align is global or local, not {self.align!r}")
        if self.predictor not in ("prototype", "classifier"):
            raise BadInput(f"predictor is prototype or classifier, not {self.predictor!r}")

    def server_init(self, r: Round) -> State:
        if self.align == "local":
            return super().server_init(r)
        classes = r.net.shape_of(r.net.logits)[-1]
        d = r.net.shape_of(r.net.representation).numel()
        no_prototypes = {
            "prototypes": torch.zeros(classes, d),
            "known": torch.zeros(classes, dtype=torch.bool),
        }
        return {**super().server_init(r), self.name: no_prototypes}

    # ------------------------------------------------------------------ at a client

    def _prototypes(self, s: Site) -> Tree:
        """`prototypes` [K, d] and which of them are `known` [K]: the server's or the client's own.

        Empty for a client that makes its own and has not made any yet.
        """
        state = s.down if self.align == "global" else s.own
        tree = state.get(self.name, {})
        width = s.net.shape_of(s.net.representation).numel()
        if tree and tree["prototypes"].shape[1] != width:
            raise BadInput(
                f"fedproto: the model of client {s.cid} has {width} features, the prototypes"
                f" {tree['prototypes'].shape[1]}; unlike models must end in the same width"
            )
        return tree

    def loss(self, b: Batch, s: Site) -> Tensor:
        loss = super().loss(b, s)
        tree = self._prototypes(s)
        if not self.lam or not tree:
            return loss
        gap = b.out[s.net.representation].flatten(1) - tree["prototypes"][b.y]
        known = tree["known"][b.y][:, None]
        return loss + self.lam * (known * gap**2).mean()

    @property
    def head_pattern(self) -> str:
        return "head.*" if self.predictor == "classifier" else ""

    def _class_sums(self, s: Site) -> tuple[Tensor, Tensor]:
        """Sums of f(x) per class [K, d] and the class counts [K], with the model as it is now."""
        z = s.scan(s.net.representation).flatten(1)
        return class_sums(z, s.data.train.y.to(s.device), s.data.classes)

    def finish(self, s: Site) -> State:
        upload = super().finish(s)
        sums, counts = self._class_sums(s)
        if self.align == "global":
            if self.weighting == "uniform":  # the mean of each class it holds, counted once
                sums, counts = sums / counts.clamp_min(1)[:, None], counts.clamp_max(1)
            return {**upload, self.name: {"sums": sums, "counts": counts}}
        s.own[self.name] = _renewed(self._prototypes(s), sums, counts)
        return upload

    # ------------------------------------------------------------------ the server's step

    def aggregate(self, r: Round) -> State:
        new = super().aggregate(r)
        if self.align == "global":
            total = r.sum(self.name)
            new[self.name] = _renewed(r.server[self.name], total["sums"], total["counts"])
        return new

    # ------------------------------------------------------------------ prediction

    def personalize(self, s: Site) -> State:
        state = super().personalize(s)
        tree = self._prototypes(s)
        if self.align == "local":  # of the model as it is now: it may have been trained since
            tree = _renewed(tree, *self._class_sums(s))
        if tree and tree["known"].any():
            state = {**state, self.name: tree}
        return state

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        by_prototype, by_classifier = self._predictions(net, state, x)
        return by_prototype if self.predictor == "prototype" else by_classifier

    def views(self, net: Net, state: State, x: Tensor) -> dict[str, Tensor]:
        """The prediction that `predictor` does not choose."""
        by_prototype, by_classifier = self._predictions(net, state, x)
        if self.predictor == "prototype":
            return {"classifier": by_classifier}
        return {"prototype": by_prototype}

    def _predictions(self, net: Net, state: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities by the nearest prototype and by the client's own head."""
        out = net(state["model"], x, want=net.logits)
        by_classifier = F.softmax(out[net.logits], -1)
        tree = state.get(self.name)
        if not tree:
            return by_classifier, by_classifier
        z = out[net.representation].flatten(1)
        # The faster product form of the distance loses the digits of near prototypes.
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(z, tree["prototypes"], compute_mode=exact)
        closeness = -(distance**2) / 2
        by_prototype = F.softmax(closeness.masked_fill(~tree["known"], float("-inf")), -1)
        return by_prototype, by_classifier


def _renewed(old: Tree, sums: Tensor, counts: Tensor) -> Tree:
    """Prototypes after a round: new means of the classes that occurred, the others as they were."""
    held = counts > 0
    means = sums / counts.clamp_min(1)[:, None]
    if not old:
        return {"prototypes": means, "known": held}
    return {
        "prototypes": torch.where(held[:, None], means, old["prototypes"]),
        "known": held | old["known"],
    }
