"""FedPAC: align features to class centroids, combine heads by an optimal quadratic program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.combination import combination_weights, combined, head_statistics
from fedloom.ops.noise import perturb
from fedloom.ops.prototypes import class_means, pooled_means


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Feature alignment and classifier collaboration (Xu et al., ICLR 2023, Algorithm 1).

    Each round, the extractor f received, the head a client's own combined one::

        client i  statistics of the received f: h_y = P(y) mean_y f, V = E|f|^2 - sum_y |h_y|^2
                  head: 1 epoch, f frozen, rate 0.1                                      eq. (15)
                  f: E epochs, head frozen, CE + lam/d |f(x) - c_y|^2                 eq. (3), (16)
                  centroids of the trained f                                             eq. (17)
        server    f <- mean by n_i (18); c_k <- mean by n_ik (19)
                  head_i <- sum_j a_ij head_j, a_i = argmin sum_j a_j^2 V_j/n_j + a'D_i a,
                  D_i[j,j'] = sum_y <h_iy - h_jy, h_iy - h_j'y>, on the simplex        eq. (4), (46)

    No alignment before there are centroids; a class the server has none for uses the client's own.
    Absent clients keep their heads, a newcomer gets the mean head; a is noted in the journal.

    Hyper-parameters: `lam` 1.0, `head_lr` 0.1, `head_epochs` 1; E is the run's epochs (the paper's
    5). `align`, `combine`: the ablation of Table 2; with neither this is FedRep. `covariance`
    "identity" is A.5 (eq. 43), "full" A.3; `center` subtracts the participants' mean feature first
    (Assumption 2). `centroids` "combined" mixes them by a_i too, for concept shift (the paper names
    no rule; this is ours). `noise_scale`, `noise_weight`: on uploaded statistics and centroids.

    Deviations: the code drops weights below 1e-3 and rescales the rest (`drop_below=1e-3`). Its
    solver can lose the variance to eigenvalue clipping; this one floors E[ff'] ("full") at 1e-6.

    Leaves the client: body, head, h [K, d], V ("full": E[ff'] [d, d]), class centroids and counts
    (which reveal its classes). Without `combine` no head, h and V; without `align` no centroids.

    >>> [p.name for p in FedPAC().phases]
    ['head', 'body']
    """

    name: ClassVar[str] = "fedpac"
    family: ClassVar[str] = "representation"
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "head.*"
    lam: float = 1.0
    head_lr: float = 0.1
    head_epochs: int = 1
    align: bool = True
    combine: bool = True
    covariance: Literal["identity", "full"] = "identity"
    center: bool = False
    centroids: Literal["global", "combined"] = "global"
    drop_below: float = 0.0
    noise_scale: float = 0.0
    noise_weight: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if self.centroids == "combined" and not self.combine:
            raise BadInput("centroids='combined' mixes by the heads' weights; set combine=true")

    @property
    def phases(self):
        first = Phase("head", "head.*", epochs=self.head_epochs, lr=self.head_lr)
        return (first, Phase("body", "* !head.*"))

    def shared_keys(self, net):
        keys = super().shared_keys(net)
        if self.combine and not net.match("head.*") <= keys:
            raise BadInput(f"fedpac combines heads, but shared={self.shared!r} keeps them")
        return keys if self.combine else keys - net.match("head.*")

    def server_init(self, r):
        n, k = r.plan.clients, r.net.shape_of(r.net.logits)[-1]
        held = {key: v.expand(n, *v.shape) for key, v in self._heads(r, r.net.tree()).items()}
        if self.align:
            rows, d = n if self.centroids == "combined" else 1, r.net.shape_of(r.net.representation)
            held["centroids"] = torch.zeros(rows, k, d.numel())
            held["known"] = torch.zeros(rows, k, dtype=torch.bool)
        return {**super().server_init(r), self.name: held}

    def _heads(self, r, tree):
        return {k: tree[k] for k in sorted(r.net.match("head.*"))} if self.combine else {}

    def send(self, r, cid):
        held, row = r.server[self.name], cid if self.centroids == "combined" else 0
        given = {k: held[k] for k in ("centroids", "known") if self.align}
        given = {k: v[row] if row < len(v) else torch.zeros_like(v[0]) for k, v in given.items()}
        mine = {k: v[cid] for k, v in self._heads(r, held).items() if cid < r.plan.clients}
        return {"model": {**r.server["model"], **mine}, self.name: given}

    def _features(self, s):
        return s.scan(s.net.representation).flatten(1), s.data.train.y.to(s.device), s.data.classes

    def local(self, s):
        memo, given = s.memo.setdefault(self.name, {}), s.down[self.name]
        z, y, k = self._features(s)  # of the received extractor: nothing is trained yet
        if self.combine:
            memo["statistics"] = head_statistics(z, y, k, self.covariance == "full")
        if self.align and given["known"].any():
            own, _ = class_means(z, y, k)
            memo["centroids"] = torch.where(given["known"][:, None], given["centroids"], own)
        super().local(s)

    def loss(self, b, s):
        loss, memo = super().loss(b, s), s.memo[self.name]
        if s.phase.name == "body" and "centroids" in memo:
            z = b.out[s.net.representation].flatten(1)
            loss = loss + self.lam * F.mse_loss(z, memo["centroids"][b.y])  # eq. (3)
        return loss

    def finish(self, s):
        found = dict(s.memo[self.name].get("statistics", {}))
        if self.align:
            centroids, counts = class_means(*self._features(s))  # eq. (17)
            found |= {"centroids": centroids, "counts": counts}
        for k in found.keys() - {"counts"}:
            found[k] = perturb(found[k], self.noise_scale, self.noise_weight, s.gen(("noise", k)))
        return {**super().finish(s), self.name: found}

    def aggregate(self, r):
        ids, new = list(r.ups), {k: v.clone() for k, v in r.server[self.name].items()}
        up = {k: r.stack(self.name, k) for k in r.ups[ids[0]].state[self.name]}
        weights, rows = torch.ones(1, len(ids)), [0]  # of the centroids
        if self.combine:
            a = combination_weights(up, self.center, self.drop_below)
            r.notes[self.name] = {"clients": ids, "weights": a.round(decimals=4).tolist()}
            for k in self._heads(r, new):
                new[k][ids] = combined(a, r.stack("model", k))  # eq. (4)
            if self.centroids == "combined":
                weights, rows = a, ids
        if self.align:
            mean, n = pooled_means(up["centroids"], up["counts"], weights)  # eq. (19)
            found = n > 0  # absent classes keep their centroid
            new["centroids"][rows] = torch.where(found[..., None], mean, new["centroids"][rows])
            new["known"][rows] |= found
        return {**super().aggregate(r), self.name: new}
