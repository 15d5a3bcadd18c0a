"""FedPAC: align features to class centroids, combine heads by an optimal quadratic program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.tree import WeightedSum
from fedloom.methods import register
from fedloom.ops.combination import combination_weights, head_statistics
from fedloom.ops.noise import perturb
from fedloom.ops.prototypes import class_means


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Feature alignment and classifier collaboration (Xu et al., ICLR 2023, Algorithm 1).

    Each round, the extractor f received, the head a client's own combined one::

        client i  statistics of the received f: h_y = P(y) mean_y f, V = sum_y P(y) E|f|^2 - |h_y|^2
                  head: 1 epoch, f frozen, rate 0.1                                      eq. (15)
                  f: E epochs, head frozen, CE + lam/d |f(x) - c_y|^2                 eq. (3), (16)
                  centroids of the trained f                                             eq. (17)
        server    f <- mean by n_i (18); c_k <- mean by n_ik (19)
                  head_i <- sum_j a_ij head_j, a_i = argmin sum_j a_j^2 V_j/n_j + a'D_i a,
                  D_i[j,j'] = sum_y <h_iy - h_jy, h_iy - h_j'y>, on the simplex        eq. (4), (46)

    No alignment before there are centroids; a class the server has none for uses the client's own.
    A client that did not take part keeps its head; the weights a are noted in the journal.

    Hyper-parameters: `lam` 1.0, `head_lr` 0.1, `head_epochs` 1; E is the run's epochs (5 in the
    paper). `align`, `combine`: the ablation of Table 2. `covariance` "identity" is A.5 (eq. 43),
    "full" A.3; `center` subtracts the global feature mean first (Assumption 2). `centroids`
    "combined" mixes them by a_i too, for concept shift, where a label means different things (the
    paper names no rule; this is ours). `noise_scale`, `noise_weight`: noise on what is uploaded.

    Deviations: weights below 1e-3 are dropped and the rest rescaled, as published. The published
    solver can lose the variance term to eigenvalue clipping; this one is exact.

    Leaves the client: body, head, h [K, d], V, class centroids and class counts (which reveal how
    many samples of each class it has).

    >>> [p.name for p in FedPAC().phases]
    ['head', 'body']
    """

    name: ClassVar[str] = "fedpac"
    gathers: ClassVar[bool] = True
    lam: float = 1.0
    head_lr: float = 0.1
    head_epochs: int = 1
    align: bool = True
    combine: bool = True
    covariance: Literal["identity", "full"] = "identity"
    center: bool = False
    centroids: Literal["global", "combined"] = "global"
    noise_scale: float = 0.0
    noise_weight: float = 0.0

    @property
    def phases(self):
        head = Phase("head", "head.*", epochs=self.head_epochs, lr=self.head_lr)
        return (head, Phase("body", "* !head.*"))

    def server_init(self, r):
        start = super().server_init(r)
        n, k = r.plan.clients, r.net.shape_of(r.net.logits)[-1]
        rows = n if self.centroids == "combined" else 1
        return {
            **start,
            self.name: {
                **{key: v.expand(n, *v.shape) for key, v in r.net.tree("head.*").items()},
                "centroids": torch.zeros(rows, k, r.net.shape_of(r.net.representation).numel()),
                "counts": torch.zeros(rows, k),
            },
        }

    def send(self, r, cid):
        held, known = r.server[self.name], cid < r.plan.clients
        row = cid if known and self.centroids == "combined" else 0
        head = {k: held[k][cid] for k in r.net.match("head.*")} if known else {}
        return {
            "model": {**r.server["model"], **head},  # a newcomer gets the average head
            self.name: {k: held[k][row] for k in ("centroids", "counts")},
        }

    def features(self, s):
        return s.scan(s.net.representation).flatten(1)

    def local(self, s):
        z, y, k = self.features(s), s.data.train.y.to(s.device), s.data.classes
        own, _ = class_means(z, y, k)
        given, counts = s.down[self.name]["centroids"], s.down[self.name]["counts"]
        s.memo["centroids"] = torch.where(counts[:, None] > 0, given, own)
        s.memo["aligned"] = self.align and bool(counts.any())
        if self.center:
            mean = counts @ given / counts.sum() if counts.any() else z.mean(0)
            z = z - mean
        s.memo["statistics"] = head_statistics(z, y, k, self.covariance == "full")
        super().local(s)

    def loss(self, b, s):
        loss = super().loss(b, s)
        if s.phase.name == "body" and s.memo["aligned"]:
            z = b.out[s.net.representation].flatten(1)
            loss = loss + self.lam * F.mse_loss(z, s.memo["centroids"][b.y])  # eq. (3)
        return loss

    def finish(self, s):
        y = s.data.train.y.to(s.device)
        centroids, counts = class_means(self.features(s), y, s.data.classes)  # eq. (17)
        found = {**s.memo["statistics"], "centroids": centroids}
        noisy = {k: self._noisy(v, s, k) if v.ndim else v for k, v in found.items()}
        return {**super().finish(s), self.name: {**noisy, "counts": counts}}

    def _noisy(self, value, s, what):
        return perturb(value, self.noise_scale, self.noise_weight, s.gen(("noise", what)))

    def aggregate(self, r):
        ids, held = list(r.ups), r.server[self.name]
        weights = np.eye(len(ids))
        if self.combine:
            weights = combination_weights(
                {k: r.stack(self.name, k) for k in r.ups[ids[0]].state[self.name]}
            )
            r.notes[self.name] = {"clients": ids, "weights": weights.round(4).tolist()}
        new = {k: v.clone() for k, v in held.items()}
        for row, cid in zip(weights, ids, strict=True):
            for k, v in _combined(r, row).items():
                new[k][cid] = v  # eq. (4)
        counts, centroids = r.stack(self.name, "counts"), r.stack(self.name, "centroids")
        shared = self.centroids == "global"
        for row, cid in [(np.ones(len(ids)), 0)] if shared else zip(weights, ids, strict=True):
            n = torch.from_numpy(row).to(counts)[:, None] * counts  # [m, K]
            total = n.sum(0)
            mean = torch.einsum("mk,mkd->kd", n, centroids) / total.clamp_min(1e-12)[:, None]
            new["centroids"][cid] = torch.where(total[:, None] > 0, mean, held["centroids"][cid])
            new["counts"][cid] += total  # eq. (19): absent classes keep their centroid
        return {**super().aggregate(r), self.name: new}


def _combined(r, row):
    """One client's combined head: a sum over the heads as they came up."""
    total = WeightedSum()
    for weight, up in zip(row, r.ups.values(), strict=True):
        if weight > 0:
            total.fold({k: up.state["model"][k] for k in r.net.match("head.*")}, float(weight))
    return total.mean()
