"""GroupDRO: clients with a high loss get a growing weight in the mean."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar, Literal

import torch

from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register

LOWEST, HIGHEST = -700.0, 600.0
"""Logarithms of weights with which sums of models neither vanish nor overflow in float64."""


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

    Deviations: FedBR's code takes the loss of the batches it trains on (`measure="training"`: the
    mean over the last fit of the round, added terms and mixed labels included) and always applies
    Mixup, which is a term here: `groupdro + mixup`. A client that is absent keeps its weight but
    for the normalisation. The server holds log q, which cannot underflow.

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
        log_q = torch.full((n,), -log(n), dtype=torch.float64)
        return {**super().server_init(r), self.name: {"log_q": log_q}}

    def send(self, r, cid):
        return {"model": r.server["model"]}

    def finish(self, s):
        return {**super().finish(s), self.name: {"loss": self._loss_of(s)}}

    def _loss_of(self, s):
        if self.measure == "training":
            return torch.tensor(s.mean_loss or 0.0)
        logits = s.scan(s.net.logits, s.received)
        return s.task.loss(logits, s.data.train.y.to(s.device))

    def _log_q(self, r, cid):
        log_q = r.server[self.name]["log_q"]
        return float(log_q[cid]) if cid < len(log_q) else -log(len(log_q))

    def _raised(self, r, cid, up):
        """The logarithm of a client's weight after this round's loss, before normalisation."""
        loss = up.state.get(self.name, {}).get("loss", 0.0)  # a special round reports none
        return self._log_q(r, cid) + self.eta * float(loss)

    def weight(self, r, cid, up):
        # A common factor does not matter; this one is known before the first upload.
        rise = self._raised(r, cid, up) - max(self._log_q(r, i) for i in r.cohort)
        return super().weight(r, cid, up) * exp(min(max(rise, LOWEST), HIGHEST))

    def aggregate(self, r):
        log_q = r.server[self.name]["log_q"].clone()
        for cid, up in r.ups.items():
            if cid < len(log_q):
                log_q[cid] = self._raised(r, cid, up)
        return {**super().aggregate(r), self.name: {"log_q": log_q.log_softmax(0)}}
