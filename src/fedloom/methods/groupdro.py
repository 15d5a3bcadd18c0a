"""GroupDRO: clients with a high loss get a growing weight in the mean."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.core.message import Up
from fedloom.core.method import Method
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register

LOWEST, HIGHEST = -700.0, 600.0
"""Bounds on the logarithm of a weight, within which no weighted sum of models vanishes or overflows
in float64."""


@register
@dataclass(frozen=True, kw_only=True)
class GroupDRO(Method):
    """Distributionally robust learning with clients as groups (Sagawa et al., ICLR 2020, Algorithm
    1; in federated form FedBR, appendix A).

    The server holds a weight q_i per client, 1/N at the start. Each round::

        client i  l_i <- loss of the received w on its training data
                  w_i <- E epochs of SGD from w
        server    q_i <- q_i exp(eta l_i) for every participant
                  q   <- q / sum_i q_i over all clients
                  w   <- sum_i q_i w_i / sum_i q_i over the participants

    Hyper-parameters: `eta` 0.01 (FedBR). `weighting` "uniform": a client's weight in the mean is
    q_i; "samples": it is q_i n_i. With unequal clients "uniform" alone changes much, for q begins
    alike: compare with `fedavg(weighting=uniform)` to see what q does.

    Deviations: FedBR's code takes the loss of the batches it trains on (`measure="training"`: the
    mean over the last fit of the round, with the losses of terms and mixed labels) and always
    applies Mixup, which is a term here: `groupdro + mixup`. The weight of a client that does not
    take part changes only by the normalisation. The server holds log q, which cannot underflow.

    Leaves the client: the whole model and one number, its loss. q is never sent.

    >>> GroupDRO(eta=0.1).weighting
    'uniform'
    """

    name: ClassVar[str] = "groupdro"
    family: ClassVar[str] = "fairness"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = (
        "the loss over all rows leaves the client, which no clipped gradient bounds"
    )
    passes_on_average: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    tunable: ClassVar[Tunable] = {"eta": Log(1e-3, 1)}
    weighting: Literal["samples", "uniform"] = "uniform"
    eta: float = 0.01
    measure: Literal["received", "training"] = "received"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta < 0:
            raise BadInput(f"groupdro: eta is at least 0, not {self.eta}")

    def server_init(self, r: Round) -> State:
        n = r.plan.clients
        log_q = torch.full((n,), -log(n), dtype=torch.float64)
        return {**super().server_init(r), self.name: {"log_q": log_q}}

    def send(self, r: Round, cid: int) -> State:
        return {"model": r.server["model"]}

    def finish(self, s: Site) -> State:
        return {**super().finish(s), self.name: {"loss": self._loss_of(s)}}

    def _loss_of(self, s: Site) -> Tensor:
        """l_i."""
        if self.measure == "training":
            return torch.tensor(s.mean_loss or 0.0)
        logits = s.scan(s.net.logits, s.received)
        return s.task.loss(logits, s.data.train.y.to(s.device))

    def _log_q(self, r: Round, cid: int) -> float:
        """A client's log q_i before this round; a newcomer's is that of an equal share."""
        log_q = r.server[self.name]["log_q"]
        return float(log_q[cid]) if cid < len(log_q) else -log(len(log_q))

    def _raised_log_q(self, r: Round, cid: int, up: Up) -> float:
        """log (q_i exp(eta l_i)): after this round's loss, before normalisation."""
        loss = up.state.get(self.name, {}).get("loss", 0.0)  # a special round reports none
        return self._log_q(r, cid) + self.eta * float(loss)

    def weight(self, r: Round, cid: int, up: Up) -> float:
        # A factor common to all weights does not change the mean. Dividing by the largest q of the
        # cohort, which is known before the first upload, keeps the weights near one.
        largest = max(self._log_q(r, i) for i in r.cohort)
        log_weight = self._raised_log_q(r, cid, up) - largest
        return super().weight(r, cid, up) * exp(min(max(log_weight, LOWEST), HIGHEST))

    def aggregate(self, r: Round) -> State:
        log_q = r.server[self.name]["log_q"].clone()
        for cid, up in r.ups.items():
            if cid < len(log_q):
                log_q[cid] = self._raised_log_q(r, cid, up)
        normalized = log_q.log_softmax(0)
        return {**super().aggregate(r), self.name: {"log_q": normalized}}
