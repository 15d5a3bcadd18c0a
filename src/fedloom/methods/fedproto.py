"""FedProto: clients exchange class prototypes and keep their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.prototypes import class_sums


@register
@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Federated prototype learning across heterogeneous clients (Tan et al., AAAI 2022).

    f is the network up to its raw representation, d wide; no weight is shared. Each round, with a
    global prototype c_k [d] of every class met so far::

        client i  its own model: E epochs on CE + lam MSE(f(x), c_y); no pull where c_y is unknown
                  c_ik = mean of f(x) over its samples of class k, f as trained; n_ik of them
        server    c_k <- sum_i n_ik c_ik / sum_i n_ik; a class nobody held keeps c_k
        at a test the class of the nearest global prototype, argmin_k |f(x) - c_k|

    Clients may have unlike networks, so long as d is the same.

    Hyper-parameters: `lam` 1.0 (0.1 for CIFAR-10). `predictor="classifier"`: the client's own
    head predicts; with it FedPAC's appendix C.5 compares `align="global"`, FedProto-G, and
    `align="local"`, FedProto-L: the prototypes are the client's own, in training those of its last
    round, and nothing is communicated. Both predictions are scored, the other one as a view.

    Deviations: the pull is of every sample's features, as in the code; the paper's regulariser
    is of class means. The paper's mean has another factor 1 / (number of clients with class k),
    which would shrink prototypes toward zero; it is left out. Probabilities are
    softmax(-|f(x) - c_k|^2 / 2) over known classes; before there are prototypes, the head's.

    Leaves the client: sums of features per class and class counts (which reveal its classes).

    >>> FedProto(align="local", predictor="classifier").shared
    ''
    """

    name: ClassVar[str] = "fedproto"
    family: ClassVar[str] = "representation"
    # Features of a mixture have no prototype; control variates correct shared weights only.
    refuses: ClassVar[tuple[str, ...]] = ("mixup", "fedmix", "control_variates")
    shared: str = ""
    lam: float = 1.0
    align: Literal["global", "local"] = "global"
    predictor: Literal["prototype", "classifier"] = "prototype"

    def __post_init__(self):
        super().__post_init__()
        if self.lam < 0:
            raise BadInput(f"lam is 0 or more, not {self.lam}")
        if self.align not in ("global", "local"):
            raise BadInput(f"align is global or local, not {self.align!r}")
        if self.predictor not in ("prototype", "classifier"):
            raise BadInput(f"predictor is prototype or classifier, not {self.predictor!r}")

    def server_init(self, r):
        if self.align == "local":
            return super().server_init(r)
        k, d = r.net.shape_of(r.net.logits)[-1], r.net.shape_of(r.net.representation).numel()
        none = {"prototypes": torch.zeros(k, d), "known": torch.zeros(k, dtype=torch.bool)}
        return {**super().server_init(r), self.name: none}

    def _given(self, s):
        """Prototypes and which of them are known; empty where a client has only its own to come."""
        given = (s.down if self.align == "global" else s.own).get(self.name, {})
        width = s.net.shape_of(s.net.representation).numel()
        if given and given["prototypes"].shape[1] != width:
            raise BadInput(
                f"fedproto: the model of client {s.cid} has {width} features, the prototypes"
                f" {given['prototypes'].shape[1]}; unlike models must end in the same width"
            )
        return given

    def loss(self, b, s):
        loss, given = super().loss(b, s), self._given(s)
        if self.lam and given:
            gap = b.out[s.net.representation].flatten(1) - given["prototypes"][b.y]
            loss = loss + self.lam * (given["known"][b.y][:, None] * gap**2).mean()
        return loss

    def _sums(self, s):
        z, y = s.scan(s.net.representation).flatten(1), s.data.train.y.to(s.device)
        return dict(zip(("sums", "counts"), class_sums(z, y, s.data.classes), strict=True))

    def finish(self, s):
        up, found = super().finish(s), self._sums(s)
        if self.align == "local":
            s.own[self.name] = _renewed(self._given(s), **found)
            return up
        return {**up, self.name: found}

    def aggregate(self, r):
        new = super().aggregate(r)
        if self.align == "global":
            new[self.name] = _renewed(r.server[self.name], **r.sum(self.name))
        return new

    def personalize(self, s):
        given = self._given(s)
        if self.align == "local":  # of the model as it is now, which may have been trained since
            given = _renewed(given, **self._sums(s))
        usable = bool(given) and bool(given["known"].any())
        return {**super().personalize(s), **({self.name: given} if usable else {})}

    def predict(self, net, state, x):
        return self._both(net, state, x)[0]

    def views(self, net, state, x):
        """The prediction that was not asked for."""
        name = "classifier" if self.predictor == "prototype" else "prototype"
        return {name: self._both(net, state, x)[1]}

    def _both(self, net, state, x):
        out = net(state["model"], x, want=net.logits)
        nearest = classified = F.softmax(out[net.logits], -1)
        if given := state.get(self.name):
            z, exact = out[net.representation].flatten(1), "donot_use_mm_for_euclid_dist"
            closeness = -(torch.cdist(z, given["prototypes"], compute_mode=exact) ** 2) / 2
            nearest = F.softmax(closeness.masked_fill(~given["known"], float("-inf")), -1)
        both = nearest, classified
        return both if self.predictor == "prototype" else both[::-1]


def _renewed(old, sums, counts):
    """Means of the classes that were held; the others as they were."""
    held = counts > 0
    means = sums / counts.clamp_min(1)[:, None]
    if not old:
        return {"prototypes": means, "known": held}
    return {
        "prototypes": torch.where(held[:, None], means, old["prototypes"]),
        "known": held | old["known"],
    }
