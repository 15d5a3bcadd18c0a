"""HypCluster and IFCA: several global models; every client trains the one that fits it best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.tree import State, Tree, WeightedSum, select
from fedloom.core.tunable import Integer, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools.stacked_models import pick_model, stack_models
from fedloom.methods import register


@register
@dataclass(frozen=True, kw_only=True)
class HypCluster(Method):
    """Hypothesis-based clustering (Mansour et al., 2020, section 3; Ghosh et al., NeurIPS 2020).

    The server holds k models w_1 .. w_k, which begin at different random values. Each round::

        client i  receives all k models
                  c_i = argmin_j F_i(w_j) on its training rows, before training
                  w_i <- E epochs of SGD from w_{c_i}; sends w_i and c_i
        server    w_j <- sum_{c_i = j} n_i w_i / sum_{c_i = j} n_i
                    (a model that no participant chose stays as it is)
        at a test the model with the lowest training loss; newcomers choose in the same way

    Hyper-parameters: `k` 3 (FedPAC: 3 and 5). `common`: a pattern of keys that all clients train
    together whichever model they chose, IFCA's weight sharing ("body.*" leaves k heads); these are
    sent once and not k times. `server_lr` 1.0 moves a model all the way to its mean. `ifca` is this
    method with uniform weights.

    Deviations: the papers leave open how the k models begin. Here w_1 begins with the weights of
    the network as it was built (which may be pretrained), and the layers of the others are drawn
    anew. IFCA's option I (gradients averaged over all participants) is left out.

    Leaves the client: its model and the number of its cluster. The download is k models.

    >>> HypCluster(k=5).k
    5
    """

    name: ClassVar[str] = "hypcluster"
    family: ClassVar[str] = "clusters and mixtures"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_client_noise: ClassVar[str] = (
        "the number of the model that a client chose must be right, and noise would change it"
    )
    against_example_noise: ClassVar[str] = (
        "all rows together choose the model that is trained, and the choice leaves the client"
    )
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "*"
    no_global: ClassVar[str] = "the server holds several models"
    # These apply one correction to all clients, who here train different models.
    refuses: ClassVar[tuple[str, ...]] = ("client_momentum", "control_variates")
    # FedPAC: 3 and 5.
    tunable: ClassVar[Tunable] = {"k": Integer(2, 5)}
    k: int = 3
    common: str = ""
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise BadInput(f"k is 1 or more models, not {self.k}")

    def extend(self, net: Net, clients: int) -> None:
        if self.common and not net.match(self.common):
            stages = ", ".join(net.reads)
            raise BadInput(f"common: {self.common!r} matches no tensor; the stages are {stages}")

    def server_init(self, r: Round) -> State:
        models = [select(r.net.tree(), r.shared)]
        for j in range(1, self.k):
            models.append(select(r.net.fresh(r.plan.seed, self.name, j), r.shared))
        common = select(models[0], r.net.match(self.common))
        return {"model": stack_models(models) | common}

    def _separate(self, net: Net, tree: Tree) -> tuple[Tree, Tree]:
        """The tensors that exist k times, and those that all clusters have in common."""
        common = net.match(self.common)
        per_cluster = {k: v for k, v in tree.items() if k not in common}
        return per_cluster, select(tree, common)

    def receive(self, s: Site) -> Tree:
        """The model with the lowest loss on the client's training rows."""
        per_cluster, common = self._separate(s.net, s.down["model"])
        personal = s.own.get("model", {})
        y = s.data.train.y.to(s.device)
        models: list[Tree] = []
        losses: list[float] = []
        for j in range(self.k):
            w = {**personal, **common, **pick_model(per_cluster, j)}
            models.append(w)
            losses.append(float(s.task.loss(s.scan(s.net.logits, w), y)))
        choice = losses.index(min(losses))
        s.memo[self.name] = choice
        return models[choice]

    def finish(self, s: Site) -> State:
        return {**super().finish(s), self.name: {"choice": torch.tensor(s.memo[self.name])}}

    def aggregate(self, r: Round) -> State:
        per_cluster, common = self._separate(r.net, r.server["model"])
        choices = {cid: int(up.state[self.name]["choice"]) for cid, up in r.ups.items()}
        r.notes[self.name] = {"clients": list(choices), "clusters": list(choices.values())}
        sums: dict[int, WeightedSum] = {}
        for cid, up in r.ups.items():
            chosen = sums.setdefault(choices[cid], WeightedSum())
            chosen.fold(up.state["model"], self.weight(r, cid, up))
        models: list[Tree] = []
        for j in range(self.k):
            w = pick_model(per_cluster, j)
            models.append(self._moved(w, sums[j].mean()) if j in sums else w)
        return {"model": stack_models(models) | self._moved(common, r.mean("model"))}

    def _moved(self, old: Tree, mean: Tree) -> Tree:
        """A model after the server's step towards the mean of those who chose it."""
        if self.server_lr == 1:
            return select(mean, old)
        return {k: (v + self.server_lr * (mean[k] - v)).to(v.dtype) for k, v in old.items()}


@register
def IFCA(k: int = 3, common: str = "") -> Method:
    """Iterative federated clustering (Ghosh et al., NeurIPS 2020): HypCluster, equal weights.

    Algorithm 1 with option II, model averaging, gives every client of a cluster the same weight.
    The paper's `k` is 4 for rotated MNIST, 2 for rotated CIFAR, 2 and 3 for FEMNIST;
    `common="body.*"` is its weight sharing. See `hypcluster`.

    >>> IFCA().weighting
    'uniform'
    """
    return HypCluster(k=k, common=common, weighting="uniform")
