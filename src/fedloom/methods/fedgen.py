"""FedGen: a generator of features, taught by all clients' heads, teaches every client's head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from fedloom.core.net import METHOD, Net
from fedloom.core.optimizers import make_optimizer
from fedloom.core.phase import Opt
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch, Term
from fedloom.core.tree import State, Tree, clone
from fedloom.core.tunable import Linear, Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.diversity import sameness


class FeatureGenerator(nn.Module):
    """One-hot labels [n, K] and noise [n, e] to features of a stage's shape."""

    def __init__(self, classes: int, noise: int, hidden: int, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.below = nn.Linear(classes + noise, hidden)
        self.above = nn.Linear(hidden, shape.numel())

    def forward(self, label: Tensor, noise: Tensor) -> Tensor:
        hidden = F.relu(self.below(torch.cat([label, noise], dim=1)))
        z: Tensor = self.above(hidden)
        return z.view(-1, *self.shape)


@register
@dataclass(frozen=True)
class FedGen(Term):
    """Data-free distillation by a feature generator (Zhu et al., ICML 2021, Algorithm 1).

    The generator G(y, eps), eps ~ N(0, I), imitates the features that the head h reads. P(y) and
    a_k(y) = n_ky / sum_j n_jy come from the class counts of the round's clients. Each round::

        client k  loss += alpha E_{y ~ P} CE(h(G(y, eps)), y), from round 2 on       eq. (5)
                  sends its class counts n_ky beside its model
        server    G: `steps` steps of Adam on
                  E_{y ~ P} CE(sum_k a_k(y) h_k(G(y, eps)), y)                       eq. (4)
                  + eta * sameness of G for different eps

    Hyper-parameters: `alpha` 1.0; `beta` 0.0, the weight of KL(h(G(y, eps)) || prediction) on the
    batch's own labels; `lr` 3e-4; `steps` 50 with `server_batch` 128; `batch` 32; `noise` 32, the
    length of eps; `hidden` 256; `eta` 1.0. The published code has alpha = beta = 10, both
    multiplied by `decay` 0.98 every round.

    Deviations: heads weigh by their counts, as in the code; in eq. (4) all weigh the same. The code
    weighs the heads' losses instead of their logits (`ensemble="losses"`), and draws labels
    uniformly from those that are held, on the server as many as for a client's batch. It draws eps
    uniformly from [0, 1) (`eps="uniform"`), where the paper has a Gaussian. Its generator has
    BatchNorm; its Adam keeps its moments over rounds, with weight decay 1e-2 and a learning rate
    that falls by 0.98 a round; its class counts begin at 1, and in its weighted losses every sample
    has the batch's mean weight.

    Leaves the client: class counts, beside the model. The generator comes down every round.

    >>> FedGen().requires
    'head.*'
    """

    name: ClassVar[str] = "fedgen"
    family: ClassVar[str] = "extra data"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    reveals: ClassVar[tuple[str, ...]] = ("class_counts",)
    against_client_noise: ClassVar[str] = (
        "the server draws classes by the counts that clients send, and noise makes some of "
        "them negative"
    )
    against_example_noise: ClassVar[str] = (
        "the counts of its classes leave the client, which no clipped gradient bounds"
    )
    gathers: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "head.*"
    requires: ClassVar[str] = "head.*"
    # These have no common feature space, no single model on the server, or a fixed head.
    refuses: ClassVar[tuple[str, ...]] = (
        "fedem",
        "fedfomo",
        "apple",
        "pfedhn",
        "hypcluster",
        "spherefed",
    )
    # The published code has 10 and 10.
    tunable: ClassVar[Tunable] = {"alpha": Log(0.1, 10), "beta": Linear(0, 10)}
    alpha: float = 1.0
    beta: float = 0.0
    lr: float = 3e-4
    steps: int = 50
    batch: int = 32
    server_batch: int = 128
    noise: int = 32
    hidden: int = 256
    eta: float = 1.0
    decay: float = 1.0
    eps: Literal["normal", "uniform"] = "normal"
    ensemble: Literal["logits", "losses"] = "logits"

    def __post_init__(self) -> None:
        if min(self.batch, self.server_batch, self.noise, self.hidden) < 1:
            raise BadInput("fedgen: batch, server_batch, noise and hidden are 1 or more")
        if self.ensemble not in ("logits", "losses"):
            raise BadInput(f"ensemble is logits or losses, not {self.ensemble!r}")
        if self.eps not in ("normal", "uniform"):
            raise BadInput(f"eps is normal or uniform, not {self.eps!r}")

    # ------------------------------------------------------------------ the generator

    def extend(self, net: Net, clients: int) -> None:
        shape, classes = net.shape_of(net.feature), net.shape_of(net.logits)[-1]
        net.tools[self.name] = FeatureGenerator(classes, self.noise, self.hidden, shape)

    def server_init(self, r: Round) -> State:
        """The weights of G; counts of zero say that no client has taught it yet."""
        weights = r.net.tools[self.name].state_dict()
        counts = torch.zeros(r.net.shape_of(r.net.logits)[-1])
        return {self.name: {**weights, "counts": counts}}

    def _generate(self, net: Net, slice_: Tree, y: Tensor, gen: Generator) -> tuple[Tensor, Tensor]:
        """G(y, eps) for labels [n], and the eps [n, e] that were drawn for it."""
        counts = slice_["counts"]
        weights = {k: v for k, v in slice_.items() if k != "counts"}
        draw = torch.randn if self.eps == "normal" else torch.rand
        eps = draw(len(y), self.noise, generator=gen).to(counts)
        label = F.one_hot(y, len(counts)).to(eps)
        z: Tensor = functional_call(net.tools[self.name], weights, (label, eps))
        return z, eps

    # ------------------------------------------------------------------ client

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        slice_ = s.down[self.name]
        key = (self.name, s.training)  # a second model's draws must not move the first one's
        if key not in s.memo:
            s.memo[key] = s.gen(key), bool(slice_["counts"].any())
        gen, taught = s.memo[key]
        if not taught or self.alpha == self.beta == 0:
            return 0.0

        drawn = torch.multinomial(slice_["counts"].cpu(), self.batch, True, generator=gen)
        y = drawn.to(s.device)  # y ~ P
        loss = self.alpha * s.task.loss(self._logits_of_generated(s, y, gen), y)  # eq. (5)
        if self.beta:
            target = self._logits_of_generated(s, b.y, gen).detach().softmax(-1)
            log_p = b.out[s.net.logits].log_softmax(-1)
            loss = loss + self.beta * F.kl_div(log_p, target, reduction="batchmean")
        return self.decay ** (s.plan.t - 1) * loss

    def _logits_of_generated(self, s: Site, y: Tensor, gen: Generator) -> Tensor:
        """h(G(y, eps)), with a gradient for h only."""
        with torch.no_grad():
            z, _ = self._generate(s.net, s.down[self.name], y, gen)
        return s.net.stage(s.w, s.net.logits, z, train=s.modes)

    def finish(self, s: Site) -> State:
        return {self.name: {"counts": s.counts}}

    # ------------------------------------------------------------------ server

    def aggregate(self, r: Round) -> State:
        heads = [up.state[METHOD] for up in r.ups.values()]
        counts = r.stack(self.name, "counts")  # n_ky, [m, K]
        p_y = counts.sum(0)  # P(y), not normalised
        slice_ = {**clone(r.server[self.name]), "counts": p_y}
        weights = [v.requires_grad_() for k, v in slice_.items() if k != "counts"]
        adam = make_optimizer(weights, Opt("adam", lr=self.lr))
        gen = r.gen(self.name)
        for _ in range(self.steps):
            y = torch.multinomial(p_y, self.server_batch, True, generator=gen)
            with torch.enable_grad():
                z, eps = self._generate(r.net, slice_, y, gen)
                logits = torch.stack([r.net.stage(head, r.net.logits, z) for head in heads])
                loss = self._ensemble_loss(logits, y, counts) + self.eta * sameness(eps, z)
            adam.step(torch.autograd.grad(loss, weights))
        return {self.name: slice_}

    def _ensemble_loss(self, logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        """Eq. (4): of the clients' heads together, from logits [m, n, K] and counts [m, K]."""
        a = counts / counts.sum(0).clamp_min(1)  # a_k(y) for every class, [m, K]
        a_y = a[:, y]  # [m, n]
        if self.ensemble == "logits":
            return F.cross_entropy((a_y[..., None] * logits).sum(0), y)
        losses = torch.stack([F.cross_entropy(of_head, y, reduction="none") for of_head in logits])
        return (a_y * losses).sum(0).mean()
