"""HypCluster and IFCA: several global models; every client trains the one that fits it best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.tree import WeightedSum, select
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.stacked import row, stacked


@register
@dataclass(frozen=True, kw_only=True)
class HypCluster(Method):
    """Hypothesis-based clustering (Mansour et al., 2020, section 3; Ghosh et al., NeurIPS 2020).

    The server holds w_1..w_k; w_1 begins as the network, the others elsewhere. Each round::

        client i  receives all k models
                  c_i = argmin_j F_i(w_j) on its training rows, before training
                  w_i <- E epochs of SGD from w_{c_i}; sends w_i and c_i
        server    w_j <- sum_{c_i = j} n_i w_i / sum_{c_i = j} n_i
                  a model nobody chose stays as it is
        at a test the model with the lowest training loss; newcomers choose in the same way

    Hyper-parameters: `k` 3 (FedPAC: 3 and 5). `common`: a pattern of keys that all clients train
    together whatever they chose, IFCA's weight sharing ("body.*" leaves k heads); they travel
    once. `ifca` is this with uniform weights.

    Deviations: the papers leave open how the k models begin; here each is drawn as the network's
    layers draw themselves, so a pretrained network is only the first of them. IFCA's option I
    (gradients averaged over all participants) is left out.

    Leaves the client: its model's update and the number of its cluster. The download is k models.

    >>> HypCluster(k=5).k
    5
    """

    name: ClassVar[str] = "hypcluster"
    family: ClassVar[str] = "clusters and mixtures"
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "*"
    no_global: ClassVar[str] = "the server holds several models"
    # One correction for all clients makes no sense where they train different models.
    refuses: ClassVar[tuple[str, ...]] = ("client_momentum", "control_variates")
    k: int = 3
    common: str = ""

    def __post_init__(self):
        super().__post_init__()
        if self.k < 1:
            raise BadInput(f"k is 1 or more models, not {self.k}")

    def extend(self, net, clients):
        if self.common and not net.match(self.common):
            stages = ", ".join(net.reads)
            raise BadInput(f"common: {self.common!r} matches no tensor; the stages are {stages}")

    def server_init(self, r):
        others = [r.net.fresh(r.plan.seed, self.name, j) for j in range(1, self.k)]
        starts = [select(tree, r.shared) for tree in (r.net.tree(), *others)]
        return {"model": stacked(starts) | select(starts[0], r.net.match(self.common))}

    def _parted(self, net, tree):
        """What there is k times, and what all clusters have in common."""
        common = net.match(self.common)
        return {k: v for k, v in tree.items() if k not in common}, select(tree, common)

    def receive(self, s):
        several, common = self._parted(s.net, s.down["model"])
        models = [{**s.own.get("model", {}), **common, **row(several, j)} for j in range(self.k)]
        y = s.data.train.y.to(s.device)
        losses = [float(s.task.loss(s.scan(s.net.logits, w), y)) for w in models]
        s.memo[self.name] = losses.index(min(losses))
        return models[s.memo[self.name]]

    def finish(self, s):
        return {**super().finish(s), self.name: {"choice": torch.tensor(s.memo[self.name])}}

    def aggregate(self, r):
        several, common = self._parted(r.net, r.server["model"])
        choices = {cid: int(up.state[self.name]["choice"]) for cid, up in r.ups.items()}
        r.notes[self.name] = {"clients": list(choices), "clusters": list(choices.values())}
        sums = {j: WeightedSum() for j in sorted(set(choices.values()))}
        for cid, up in r.ups.items():
            sums[choices[cid]].fold(up.state["model"], self.weight(r, cid, up))
        models = [row(several, j) for j in range(self.k)]
        for j, found in sums.items():
            models[j] = self._moved(models[j], found.mean())
        return {"model": stacked(models) | self._moved(common, r.mean("model"))}

    def _moved(self, old, mean):
        if self.server_lr == 1:
            return select(mean, old)
        return {k: (v + self.server_lr * (mean[k] - v)).to(v.dtype) for k, v in old.items()}


@register
def IFCA(k: int = 3, common: str = "") -> Method:
    """Iterative federated clustering (Ghosh et al., NeurIPS 2020): HypCluster, clients alike.

    Algorithm 1 with option II, model averaging, gives every client of a cluster the same weight.
    The paper's `k`: 4 (rotated MNIST), 2 (rotated CIFAR), 2 and 3 (FEMNIST); `common="body.*"` is
    its weight sharing. See `hypcluster`.

    >>> IFCA().weighting
    'uniform'
    """
    return HypCluster(k=k, common=common, weighting="uniform")
