"""FedEM: every client is a mixture of a few shared learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.phase import tuning
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

    M learners theta_1..theta_M are shared; client i has weights pi_i, 1/M at the start. Each round,
    l_m(j) being learner m's loss on sample j::

        client i  E step  q_j(m) ~ pi_im e^{-l_m(j)}, all samples, learners as received
                  M step  pi_im <- mean_j q_j(m), kept for the next round and for tests
                          theta_m <- E epochs of SGD on mean_j q_j(m) l_m(j), q held fixed
        server    theta_m <- sum_i n_i theta_im / sum_i n_i
        at a test p = sum_m pi_im softmax of learner m
        newcomer  pi by E and M steps on its training rows, the learners as received; so does a
                  member that was never sampled, for its test

    Learner 1 is the network, the others are stages beside it (`head_2`, `head_3`), drawn anew.

    Hyper-parameters: `learners` M 3 (FedPAC: 3 and 5). `adapt_epochs` > 0 is FedPAC's FedEM-FT
    (how long it tunes is not stated): before a test an E and M step with so many epochs, kept.

    Deviations: all learners take a step on the same batch, one after another in the paper; `clip`
    bounds their common norm. Ten steps for a newcomer; the paper leaves the number open. Terms
    that speak of one model (any that add stages or a loss, or change inputs) are refused; terms
    that correct gradients (FedProx, SCAFFOLD) act on every learner.

    Leaves the client: M models; never pi.

    >>> FedEM(learners=5).learners
    5
    """

    name: ClassVar[str] = "fedem"
    family: ClassVar[str] = "clusters and mixtures"
    no_global: ClassVar[str] = "it has several learners"
    learners: int = 3
    adapt_epochs: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.learners < 1 or self.adapt_epochs < 0:
            raise BadInput(
                "fedem: learners is 1 or more and adapt_epochs 0 or more,"
                f" not {self.learners} and {self.adapt_epochs}"
            )
        for term in self.terms:
            if any(term.overrides(hook) for hook in ("extend", "inputs", "loss")):
                raise BadInput(
                    f"fedem and {term.name} cannot be combined, for it speaks of one model and"
                    " fedem trains several; leave one out"
                )

    @property
    def adapt(self):
        return tuning("*", self.adapt_epochs)

    def extend(self, net, clients):
        for tag in self._tags()[1:]:
            add_fresh_copy(net, tag)

    def _tags(self):
        return ["", *(f"_{m}" for m in range(2, self.learners + 1))]

    def _last(self, net):
        """The stage of every learner's logits."""
        return [net.logits + tag for tag in self._tags()]

    def _held(self, s, losses, steps):
        """pi where the client has trained; elsewhere so many steps of EM from equal weights."""
        held = s.own.get(self.name)
        return held["pi"] if held else mixture_weights(losses, steps)

    def _losses(self, s, w):
        """Every learner's loss on every training row [n, M]."""
        y = s.data.train.y.to(s.device)
        return torch.stack(
            [s.task.loss(s.scan(stage, w), y, "none") for stage in self._last(s.net)], 1
        )

    def inputs(self, b, s):
        """The E step, before the first batch of a round moves anything."""
        if self.name not in s.memo:
            losses, first = self._losses(s, s.w), not s.newcomer and s.phase not in self.adapt
            pi = self._held(s, losses, 0 if first else NEWCOMER_STEPS)
            q = responsibilities(losses, pi)
            s.memo[self.name], s.own[self.name] = q, {"pi": q.mean(0)}

    def loss(self, b, s):
        q = s.memo[self.name][b.idx]
        return sum(
            (q[:, m] * s.task.loss(b.out[stage], b.target, "none")).mean()
            for m, stage in enumerate(self._last(s.net))
        )

    def personalize(self, s):
        losses = None if self.name in s.own else self._losses(s, s.w)
        return {"model": s.w, self.name: {"pi": self._held(s, losses, NEWCOMER_STEPS)}}

    def predict(self, net, state, x):
        out, pi = net(state["model"], x), state[self.name]["pi"]
        return sum(p * out[m].softmax(-1) for p, m in zip(pi, self._last(net), strict=True))
