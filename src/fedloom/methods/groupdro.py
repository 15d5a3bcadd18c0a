"""GroupDRO: clients with a high loss get a growing weight in the mean."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class GroupDRO(Method):
    """Distributionally robust learning with clients as groups (Sagawa et al., ICLR 2020, Algorithm
    1; in federated form FedBR, appendix A).

    q is a weight per client, 1/N at the start, known to the server only. Each round::

        client i  l_i <- loss of the received w on its training data
                  w_i <- E epochs of SGD from w
        server    q_i <- q_i exp(eta l_i) for the cohort, then q <- q / sum q
                  w <- sum_i q_i w_i / sum_i q_i over the cohort

    Hyper-parameters: `eta` 0.01 (FedBR). `weighting` "uniform": q alone weighs a client;
    "samples": q_i n_i.

    Deviations: FedBR's code takes the loss of the batches it trains on (`measure="training"`,
    added terms and mixed labels included) and always applies Mixup, which is a term here:
    `groupdro + mixup`. A client that is absent keeps its weight but for the normalisation.

    Leaves the client: the whole model and one number, its loss. q is never sent.

    >>> GroupDRO(eta=0.1).weighting
    'uniform'
    """

    name: ClassVar[str] = "groupdro"
    family: ClassVar[str] = "fairness"
    gathers: ClassVar[bool] = True
    weighting: Literal["samples", "uniform"] = "uniform"
    eta: float = 0.01
    measure: Literal["received", "training"] = "received"

    def __post_init__(self):
        super().__post_init__()
        if self.eta < 0:
            raise BadInput(f"groupdro: eta is at least 0, not {self.eta}")

    def server_init(self, r):
        n = r.plan.clients
        q = torch.full((n,), 1 / n, dtype=torch.float64)
        return {**super().server_init(r), self.name: {"q": q}}

    def send(self, r, cid):
        return {"model": r.server["model"]}

    def finish(self, s):
        return {**super().finish(s), self.name: {"loss": self._loss_of(s)}}

    def _loss_of(self, s):
        if self.measure == "training":
            return torch.tensor(s.mean_loss or 0.0)
        logits = s.scan(s.net.logits, s.received)
        return s.task.loss(logits, s.data.train.y.to(s.device))

    def _raised(self, r, cid, up):
        """A client's weight after this round's loss, before it is normalised."""
        q = r.server[self.name]["q"]
        now = float(q[cid]) if cid < len(q) else 1 / len(q)
        loss = up.state.get(self.name, {}).get("loss", 0.0)  # a special round reports none
        return now * exp(self.eta * float(loss))

    def weight(self, r, cid, up):
        return super().weight(r, cid, up) * self._raised(r, cid, up)

    def aggregate(self, r):
        q = r.server[self.name]["q"].clone()
        for cid, up in r.ups.items():
            if cid < len(q):
                q[cid] = self._raised(r, cid, up)
        return {**super().aggregate(r), self.name: {"q": q / q.sum()}}
