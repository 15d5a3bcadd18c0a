"""FedPAC: align features to class centroids, combine heads by an optimal quadratic program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.phase import Phase
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch
from fedloom.core.tree import State, Tree, clone
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.combination import combination_weights, combined, head_statistics
from fedloom.ops.noise import perturb
from fedloom.ops.prototypes import class_means, pooled_means


@register
@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Feature alignment and classifier collaboration (Xu et al., ICLR 2023, Algorithm 1).

    The model is a feature extractor f under a head. All clients share f; each has a head of its
    own, which the server combines from the heads of the participants. Each round::

        client i  receives f, its own head and the centroids c_k of the classes
                  statistics of the received f, over its n_i samples:
                    h_iy = P_i(y) E[f(x) | y]                                         eq. (34)
                    V_i  = E |f(x)|^2 - sum_y |h_iy|^2                                eq. (44)
                  head: 1 epoch at rate 0.1, f frozen                                 eq. (15)
                  f: E epochs on CE + lam/d |f(x) - c_y|^2, head frozen               eq. (3), (16)
                  c_ik = mean of the trained f over its n_ik samples of class k       eq. (17)
        server    f <- sum_i n_i f_i / sum_i n_i                                      eq. (18)
                  c_k <- sum_i n_ik c_ik / sum_i n_ik                                 eq. (19)
                  a_i = argmin_a sum_j a_j^2 V_j / n_j + a' D_i a, on the simplex     eq. (46)
                    where D_i[j, j'] = sum_y <h_iy - h_jy, h_iy - h_j'y>              eq. (45)
                  head_i <- sum_j a_ij head_j                                         eq. (4)

    There is no alignment before the server has centroids. For a class without a centroid, a client
    aligns to the mean of its own samples of that class. Clients that do not take part keep their
    heads; a newcomer gets the mean of all heads. The weights a are written to the journal.

    Hyper-parameters: `lam` 1.0, `head_lr` 0.1, `head_epochs` 1; E is the run's number of epochs (5
    in the paper). `align` and `combine` switch the two ideas off, as the ablation of Table 2 does;
    with neither, this is FedRep. `covariance` "identity" is the simplification of appendix A.5 (eq.
    43), "full" the general form of A.3. `center` first subtracts the participants' mean feature
    (Assumption 2). `centroids` "combined" gives every client centroids of its own, mixed by a_i,
    for concept shift (the paper suggests it and names no rule; this rule is ours). `noise_scale`
    and `noise_weight` perturb the uploaded statistics and centroids.

    Deviations: the published code drops weights below 1e-3 and rescales the others
    (`drop_below=1e-3`). Its solver can lose the variance when it clips eigenvalues; here the
    eigenvalues of E[f f'] ("full") are floored at 1e-6 of their mean.

    Leaves the client: body, head, h [K, d], V ("full": E[f f'] [d, d] in its place), class
    centroids and class counts (which reveal its classes). Without `combine` neither head, h nor V;
    without `align` no centroids.

    >>> [p.name for p in FedPAC().phases]
    ['head', 'body']
    """

    name: ClassVar[str] = "fedpac"
    family: ClassVar[str] = "representation"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ("class_means", "class_counts")
    against_example_noise: ClassVar[str] = (
        "means and counts of its classes leave the client, which no clipped gradient bounds"
    )
    personal_model: ClassVar[bool] = True
    passes_on_average: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "head.*"
    # The paper's grid of lam.
    tunable: ClassVar[Tunable] = {"lam": Log(0.1, 10), "head_lr": Log(1e-2, 1)}
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centroids == "combined" and not self.combine:
            raise BadInput("centroids='combined' mixes by the heads' weights; set combine=true")

    @property
    def phases(self) -> tuple[Phase, ...]:
        head = Phase("head", "head.*", epochs=self.head_epochs, lr=self.head_lr)  # eq. (15)
        body = Phase("body", "* !head.*")  # eq. (16)
        return (head, body)

    def shared_keys(self, net: Net) -> frozenset[str]:
        keys, head = super().shared_keys(net), net.match("head.*")
        if not self.combine:
            return keys - head
        if not head <= keys:
            raise BadInput(f"fedpac combines heads, but shared={self.shared!r} keeps them")
        return keys

    def _head_keys(self, net: Net) -> list[str]:
        """The tensors of a head that the server combines."""
        return sorted(net.match("head.*")) if self.combine else []

    # ------------------------------------------------------------------ what the server holds

    def server_init(self, r: Round) -> State:
        """A row per client of every head tensor; centroids, none of them known yet."""
        initial = r.net.tree()
        slice_: Tree = {}
        for key in self._head_keys(r.net):
            slice_[key] = initial[key].expand(r.plan.clients, *initial[key].shape)
        if self.align:
            rows = r.plan.clients if self.centroids == "combined" else 1
            classes = r.net.shape_of(r.net.logits)[-1]
            d = r.net.shape_of(r.net.representation).numel()
            slice_["centroids"] = torch.zeros(rows, classes, d)
            slice_["known"] = torch.zeros(rows, classes, dtype=torch.bool)
        return {**super().server_init(r), self.name: slice_}

    def send(self, r: Round, cid: int) -> State:
        """The shared extractor under the client's own head, and the centroids."""
        model = dict(r.server["model"])
        if cid < r.plan.clients:  # a newcomer has no row and gets the mean head
            for key in self._head_keys(r.net):
                model[key] = r.server[self.name][key][cid]
        return {"model": model, self.name: self._centroids_for(r, cid) if self.align else {}}

    def _centroids_for(self, r: Round, cid: int) -> Tree:
        centroids, known = r.server[self.name]["centroids"], r.server[self.name]["known"]
        row = cid if self.centroids == "combined" else 0
        if row < len(centroids):
            return {"centroids": centroids[row], "known": known[row]}
        return {"centroids": torch.zeros_like(centroids[0]), "known": torch.zeros_like(known[0])}

    # ------------------------------------------------------------------ at a client

    def _features(self, s: Site) -> tuple[Tensor, Tensor]:
        """f(x) [n, d] and y [n] of all training rows, with the client's model as it is now."""
        return s.scan(s.net.representation).flatten(1), s.data.train.y.to(s.device)

    def local(self, s: Site) -> None:
        z, y = self._features(s)  # of the received extractor: nothing is trained yet
        if self.combine:
            full = self.covariance == "full"
            s.memo[self.name, "statistics"] = head_statistics(z, y, s.data.classes, full)
        if self.align:
            s.memo[self.name, "targets"] = self._alignment_targets(s, z, y)
        super().local(s)

    def _alignment_targets(self, s: Site, z: Tensor, y: Tensor) -> Tensor | None:
        """c_y [K, d]: the server's centroids, and the client's own where the server has none.

        None before the first centroids.
        """
        received = s.down[self.name]
        if not received["known"].any():
            return None
        own, _ = class_means(z, y, s.data.classes)
        return torch.where(received["known"][:, None], received["centroids"], own)

    def loss(self, b: Batch, s: Site) -> Tensor:
        loss = super().loss(b, s)
        targets = s.memo.get((self.name, "targets"))
        if s.phase.name == "body" and targets is not None:
            z = b.out[s.net.representation].flatten(1)
            loss = loss + self.lam * F.mse_loss(z, targets[b.y])  # eq. (3)
        return loss

    def finish(self, s: Site) -> State:
        upload: Tree = dict(s.memo.get((self.name, "statistics"), {}))
        if self.align:
            z, y = self._features(s)  # of the trained extractor
            upload["centroids"], upload["counts"] = class_means(z, y, s.data.classes)  # eq. (17)
        for key, value in upload.items():
            if key != "counts":
                gen = s.gen(("noise", key))
                upload[key] = perturb(value, self.noise_scale, self.noise_weight, gen)
        return {**super().finish(s), self.name: upload}

    # ------------------------------------------------------------------ the server's step

    def aggregate(self, r: Round) -> State:
        participants = list(r.ups)
        uploaded_keys = r.ups[participants[0]].state[self.name]
        uploads = {key: r.stack(self.name, key) for key in uploaded_keys}
        new = clone(r.server[self.name])
        rows, weights = [0], torch.ones(1, len(participants))  # of centroids that all clients share
        if self.combine:
            a = combination_weights(uploads, self.center, self.drop_below)  # eq. (46)
            r.notes[self.name] = {
                "clients": participants,
                "weights": a.round(decimals=4).tolist(),
            }
            for key in self._head_keys(r.net):
                new[key][participants] = combined(a, r.stack("model", key))  # eq. (4)
            if self.centroids == "combined":
                rows, weights = participants, a
        if self.align:
            _renew_centroids(new, rows, uploads, weights)
        return {**super().aggregate(r), self.name: new}


def _renew_centroids(slice_: Tree, rows: list[int], uploads: Tree, weights: Tensor) -> None:
    """Write the weighted means of the uploaded centroids into these rows of the server's slice.

    A class that no participant holds keeps the centroid it had.
    """
    means, counts = pooled_means(uploads["centroids"], uploads["counts"], weights)  # eq. (19)
    held = counts > 0
    slice_["centroids"][rows] = torch.where(held[..., None], means, slice_["centroids"][rows])
    slice_["known"][rows] |= held
