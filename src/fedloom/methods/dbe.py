"""DBE: detach each client's representation bias, regularise the rest to a common mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from fedloom.core.message import Up
from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.term import AtOnce, Batch, Term
from fedloom.core.tree import State
from fedloom.core.tunable import Linear, Log, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools import broadcast_once
from fedloom.method_tools.network_kind import NetworkKind, network_kind
from fedloom.methods import register
from fedloom.models.layers import Translation
from fedloom.ops.noise import perturb
from fedloom.ops.squares import mean_squares

STRENGTHS: dict[NetworkKind, tuple[float, float]] = {
    "cnn": (50.0, 1.0),
    "batch_norm": (1.0, 0.1),
    "text": (0.1, 1.0),
    "other": (1.0, 1.0),
}
"""kappa and mu by the kind of network (C.2)."""


@register
@dataclass(frozen=True)
class PRBM(Term):
    """Personalized representation bias memory (DBE, Zhang et al., NeurIPS 2023, section 4.2).

    The head reads z = f(x) + z_p (eq. 4). z_p is zero at the start, is trained with the model and
    stays with the client; it is never reset, and weight decay does not act on it.

    Hyper-parameters: `at` is the stage that z_p is added to: None for the network's representation,
    or one of the places of Table 1, for instance "conv2" of `cnn4(stages=fine)`; z_p then has an
    entry for every channel and position.

    Deviations: none.

    Leaves the client: nothing.

    >>> PRBM(at="conv2").at
    'conv2'
    """

    name: ClassVar[str] = "prbm"
    family: ClassVar[str] = "representation"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    at: str | None = None

    def extend(self, net: Net, clients: int) -> None:
        stage = self.at or net.representation
        if stage == net.logits:
            raise BadInput(f"prbm: at={stage!r} is the last stage; name an earlier one")
        z_p = Translation(net.shape_of(stage))
        net.insert(self.name, z_p, after=stage)  # eq. (4)


@register
@dataclass(frozen=True)
class MeanRegularization(Term):
    """Regularises the mean of the representation to a consensual mean (DBE, section 4.3).

    ::

        before FL  every client trains one epoch without DBE and reports the mean of f(x) over
                   its data; the server's z_g = sum_i n_i/n mean_i; the weights are thrown away
        each step  m <- (1 - mu) m + mu mean_batch f(x), m = 0 at the start of a round    eq. (9)
                   loss += kappa * MSE(m, z_g), gradient by the batch's share of m only   eq. (8)

    Hyper-parameters: where `kappa` and `mu` are None, they go by the kind of network: 50 and 1.0
    for CNNs, 1 and 0.1 for networks with BatchNorm (the paper's ResNet-18), 0.1 and 1.0 for text, 1
    and 1.0 for others, which the paper does not have. `at` is the stage whose mean is regularised,
    None for the representation. `noise_scale` and `noise_weight` are the paper's s and q (Table 3)
    of Gaussian noise on the reported means.

    It acts in the rounds, where it makes what a client teaches the server less its own, and not in
    a method's fine-tuning before a test (FedBABU's), which the paper does after federated learning
    and which teaches nobody; `while_tuning` has it act there too.

    Deviations: the published code halves the MSE (`half=True`). It reports the running mean m of
    that first training instead of a clean pass over the data (`mean="running"`; with mu = 1 that is
    the mean of the last batch). And it trains as long as in a round then (`init_epochs=None`).
    Phases that state their own epochs, as FedRep's do, keep them in that first training.

    Leaves the client: the mean of its representations, once. z_g comes down once and is kept.

    >>> MeanRegularization(kappa=5.0).before
    ('mean',)
    """

    name: ClassVar[str] = "mean_regularization"
    family: ClassVar[str] = "representation"
    before: ClassVar[tuple[str, ...]] = ("mean",)
    gathers: ClassVar[bool] = True
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("loss", "finish")
    in_the_clear: ClassVar[tuple[str, ...]] = (broadcast_once.LOST,)
    against_example_noise: ClassVar[str] = (
        "its loss is of the mean of a batch, so that a row changes the gradients of others"
    )
    # C.2 searches kappa from 0.001 to 500 and takes 0.1 to 50.
    tunable: ClassVar[Tunable] = {"kappa": Log(1e-2, 200), "mu": Linear(0.1, 1)}
    kappa: float | None = None
    mu: float | None = None
    at: str | None = None
    mean: Literal["data", "running"] = "data"
    half: bool = False
    init_epochs: int | None = 1
    noise_scale: float = 0.0
    noise_weight: float = 0.0
    while_tuning: bool = False

    @property
    def reveals(self) -> tuple[str, ...]:  # type: ignore[override]
        """The running mean follows the last batches, and a stage near the input has it nearly as
        the rows are."""
        return ("feature_mean",) if self.mean == "data" else ("row_means",)

    # ------------------------------------------------------------------ before the first round

    def special(self, s: Site) -> State:
        if self.init_epochs is not None:
            s.opt = replace(s.opt, epochs=self.init_epochs, steps=None)
        follows_m = self.mean == "running"
        # Without DBE: there is no z_g yet, so this term adds no loss and only follows m.
        s.terms = (self,) if follows_m else ()
        s.method.local(s)  # Alg. 1 line 2
        if follows_m:
            mean: Tensor = s.memo[self.name, "model"]
        else:
            mean = s.scan(self._stage(s.net)).mean(0)
        noisy = perturb(mean, self.noise_scale, self.noise_weight, s.gen("noise"))
        return {self.name: {"mean": noisy}}

    # ------------------------------------------------------------------ rounds

    def send(self, r: Round, cid: int) -> State:
        return broadcast_once.send(r, self.name, cid)

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if s.tuning and not self.while_tuning:
            return 0.0
        # Each model in training has an m of its own (Ditto trains two), which begins at 0.
        key = (self.name, s.training)
        if key not in s.memo:
            s.memo[key] = 0.0
            s.memo[self.name] = self._strengths(s.net)
        kappa, mu = s.memo[self.name]
        stage = self._stage(s.net)
        dims = len(s.net.shape_of(stage))
        batch_mean = b.out[stage].mean(-1 - dims)
        m = mu * batch_mean + (1 - mu) * s.memo[key]  # eq. (9)
        s.memo[key] = m.detach()

        z_g = broadcast_once.received(s, self.name)
        if not z_g:
            return 0.0
        mse = mean_squares(m, z_g["mean"], dims)
        loss: Tensor = kappa * (mse / 2 if self.half else mse)  # eq. (8)
        return loss

    def finish(self, s: Site) -> State:
        return broadcast_once.keep(s, self.name)

    def weight(self, r: Round, cid: int, up: Up) -> float:
        """n_i (Alg. 1 line 3), also where the method gives all clients the same weight."""
        return float(up.n)

    def aggregate(self, r: Round) -> State:
        if r.plan.kind == "special":
            z_g = r.mean(self.name)  # Alg. 1 line 3
            return {self.name: broadcast_once.start(r, z_g)}
        return {self.name: broadcast_once.mark_holders(r, self.name)}

    # ------------------------------------------------------------------ settings

    def _stage(self, net: Net) -> str:
        """The stage whose mean is regularised."""
        return self.at or net.representation

    def _strengths(self, net: Net) -> tuple[float, float]:
        """kappa and mu; what was left open goes by the kind of network."""
        kappa, mu = STRENGTHS[network_kind(net)]
        if self.kappa is not None:
            kappa = self.kappa
        if self.mu is not None:
            mu = self.mu
        return kappa, mu


@register
def DBE(
    kappa: float | None = None,
    mu: float | None = None,
    at: str | None = None,
    mean: Literal["data", "running"] = "data",
    half: bool = False,
    init_epochs: int | None = 1,
    noise_scale: float = 0.0,
    noise_weight: float = 0.0,
) -> tuple[Term, ...]:
    """Domain bias eliminator (Zhang et al., NeurIPS 2023): PRBM + MeanRegularization.

    It goes on any method. The two terms, `prbm` and `mean_regularization`, also work alone (Table
    2); their own pages explain the settings. `half=true, mean=running, init_epochs=none` are the
    published code's readings.

    >>> [term.name for term in DBE(kappa=50.0)]
    ['prbm', 'mean_regularization']
    """
    regularization = MeanRegularization(
        kappa=kappa,
        mu=mu,
        at=at,
        mean=mean,
        half=half,
        init_epochs=init_epochs,
        noise_scale=noise_scale,
        noise_weight=noise_weight,
    )
    return PRBM(at), regularization
