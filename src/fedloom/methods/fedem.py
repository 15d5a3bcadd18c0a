"""FedEM: every client is a mixture of a few shared learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Phase, tuning
from fedloom.core.site import Site
from fedloom.core.term import Batch
from fedloom.core.tree import State
from fedloom.core.tunable import Integer, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools.network_copies import add_fresh_copy
from fedloom.methods import register
from fedloom.ops.mixture import mixture_weights, responsibilities

NEWCOMER_STEPS = 10
"""EM steps by which a client that never trained finds its weights for a test."""


@register
@dataclass(frozen=True, kw_only=True)
class FedEM(Method):
    """Multi-task learning under a mixture of distributions (Marfoq et al., NeurIPS 2021, Alg. 1).

    M learners theta_1..theta_M are shared; client i has weights pi_i, 1/M each at the start. l_m(j)
    is learner m's loss on sample j. Each round::

        client i  E step  q_j(m) ~ pi_im e^{-l_m(j)}, all samples, learners as received
                  M step  pi_im <- mean_j q_j(m), kept for the next round and for tests
                          theta_m <- E epochs of SGD on mean_j q_j(m) l_m(j), q held fixed
        server    theta_m <- sum_i n_i theta_im / sum_i n_i
        at a test p = sum_m pi_im times learner m's prediction

    A newcomer finds pi by E and M steps on its training rows, with the learners as received; for
    its test, a member that was never sampled does the same. Learner 1 is the network; the others
    are stages beside it (`head_2`, `head_3`) with random weights of their own.

    Hyper-parameters: `learners` M 3 (FedPAC: 3 and 5). `adapt_epochs` > 0 is FedPAC's FedEM-FT,
    which does not say how long it tunes: before a test, an E and an M step with so many epochs,
    whose pi is kept with the tuned learners. Its authors' rate for CIFAR-10 is 0.03, three times
    FedAvg's: a learner sees its share of every sample's gradient, a third at the start.

    Deviations: all learners take a step on the same batch, where the paper trains one after the
    other; `clip` bounds the norm of all their gradients together. A newcomer takes ten EM steps;
    the paper leaves the number open. Terms that are made for one model (those that add stages or a
    loss, or change inputs) are refused; terms that correct gradients (FedProx, SCAFFOLD) act on
    every learner.

    Leaves the client: M models; never pi.

    >>> FedEM(learners=5).learners
    5
    """

    name: ClassVar[str] = "fedem"
    family: ClassVar[str] = "clusters and mixtures"
    reveals: ClassVar[tuple[str, ...]] = ("row_weights",)
    against_example_noise: ClassVar[str] = (
        "all rows together make the weights by which it mixes the losses of each"
    )
    no_global: ClassVar[str] = "it has several learners"
    # FedPAC: 3 and 5.
    tunable: ClassVar[Tunable] = {"learners": Integer(2, 5)}
    learners: int = 3
    adapt_epochs: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.learners <= 1000 or self.adapt_epochs < 0:
            raise BadInput(
                "fedem: learners is 1 to 1000 and adapt_epochs 0 or more,"
                f" not {self.learners} and {self.adapt_epochs}"
            )
        for term in self.terms:
            if any(term.overrides(hook) for hook in ("extend", "inputs", "loss")):
                raise BadInput(
                    f"fedem and {term.name} cannot be combined, for it speaks of one model and"
                    " fedem trains several; leave one out"
                )

    # ------------------------------------------------------------------ the learners

    def extend(self, net: Net, clients: int) -> None:
        for m in range(2, self.learners + 1):
            add_fresh_copy(net, f"_{m}")

    def _logits(self, net: Net) -> list[str]:
        """The last stage of every learner."""
        others = [f"{net.logits}_{m}" for m in range(2, self.learners + 1)]
        return [net.logits, *others]

    def _losses(self, s: Site) -> Tensor:
        """l_m(j): every learner's loss on every training row [n, M]."""
        y = s.data.train.y.to(s.device)
        losses = [s.task.loss(s.scan(stage), y, "none") for stage in self._logits(s.net)]
        return torch.stack(losses, 1)

    # ------------------------------------------------------------------ local training

    @property
    def adapt(self) -> tuple[Phase, ...]:
        return tuning("*", self.adapt_epochs)

    @property
    def head_pattern(self) -> str:
        return "head.* head_*.*"

    def inputs(self, b: Batch, s: Site) -> None:
        """The E step and the new pi, once, before the first batch moves the learners."""
        if self.name in s.memo:
            return
        losses = self._losses(s)
        own = s.own.get(self.name)
        if own:
            pi = own["pi"]
        else:
            first_round = not s.newcomer and not s.tuning
            pi = mixture_weights(losses, steps=0 if first_round else NEWCOMER_STEPS)
        q = responsibilities(losses, pi)
        s.memo[self.name] = q
        s.own[self.name] = {"pi": q.mean(0)}

    def loss(self, b: Batch, s: Site) -> Tensor:
        """The M step's objective: the sum over m of mean_j q_j(m) l_m(j)."""
        q = s.memo[self.name][b.idx]
        loss = torch.zeros((), device=s.device)
        for m, stage in enumerate(self._logits(s.net)):
            l_m = s.task.loss(b.out[stage], b.target, "none")
            loss = loss + (q[:, m] * l_m).mean()
        return loss

    # ------------------------------------------------------------------ prediction

    def personalize(self, s: Site) -> State:
        own = s.own.get(self.name)
        pi = own["pi"] if own else mixture_weights(self._losses(s), NEWCOMER_STEPS)
        return {METHOD: s.w, self.name: {"pi": pi}}

    def predict(self, net: Net, state: State, x: Tensor) -> Tensor:
        out = net(state[METHOD], x)
        pi = state[self.name]["pi"]
        p = torch.zeros_like(out[net.logits])
        for m, stage in enumerate(self._logits(net)):
            p = p + pi[m] * net.predicted(out[stage])
        return p
