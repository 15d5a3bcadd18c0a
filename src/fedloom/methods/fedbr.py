"""FedBR: debias the local classifier and features with pseudo-data and a min-max game."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.core.round import Round
from fedloom.core.site import Site
from fedloom.core.task import Need
from fedloom.core.term import Batch, Term
from fedloom.core.tree import State
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.method_tools import broadcast_once
from fedloom.method_tools.pseudo_data import mix_images, pool_images, proxy_images, sample_means
from fedloom.methods import register
from fedloom.models.layers import perceptron
from fedloom.ops.ascent import ascend
from fedloom.ops.contrastive import pair_contrast


@register
@dataclass(frozen=True)
class FedBR(Term):
    """Local learning bias reduction (Guo et al., ICML 2023, Algorithm 1).

    phi is the network up to its representation, omega its head, and P_theta a projection beside it;
    all three are shared. D_p is a batch of pseudo-images x_p, whose labels are uniform, 1/C for
    each class. Each local step::

        max step  theta <- theta + lr grad L_con                                          line 8
        min step  CE(x, y) + lam CE(x_p, 1/C) + mu L_con over phi and omega        eq. (3), line 10
        L_con     -log f1 / (f1 + f2), f1 = exp(cos(P phi(x_p), P phi_g(x_p)) / tau1),
                  f2 = exp(cos(P phi(x_p), P phi(x)) / tau2)                          eq. (5)-(7)

    phi_g is the phi that was received. With `pseudo="rsm"` a pseudo-image is the mean of `of`
    images of one client (Algorithm 2). With "mixture" it is the mean of `of` images of a public
    data set, `proxy` (Algorithm 3), and at every step it is averaged with `mix` images of the
    batch, as its label is with theirs (eq. 4).

    Hyper-parameters: `lam` 1.0 (0.1 for CIFAR-10 and PACS), `mu` 0.5, `tau1` = `tau2` = 2.0, `of`
    10 (not in the paper), `images` in D_p, None for as many as a batch has. The paper gives all
    clients the same weight and counts local steps (`steps=50, replacement=true`). `refresh` makes
    new pseudo-images each round (the paper); without it they are made and sent once. `balanced`
    draws all classes equally often (Figure 6d). Ablations: lam=0 or mu=0 leave one component,
    `max_step=False` (Table 4), `projection=None` (Figure 6a; its algorithms with the projection in
    the feature extractor are `+ projection_head(widths=[256, 256, 128])`). theta's steps have the
    momentum of the run, 0.9 for the paper's CCT and ResNet; `theta_momentum` sets another.

    Deviations: the published code multiplies by tau instead of dividing (`multiply=True`; only so
    does the tau2 = 0 of Tables 10 and 11 have a meaning, f2 = 1: no push from the images of the
    batch), has a projection of width 2d and output d instead of the paper's 256 and 128
    (`projection="published"`), draws pseudo-images once, takes phi_g of the first step's mixture at
    all steps, and has no momentum (`theta_momentum=0`, and none in the run). BatchNorm statistics
    are those of real images.

    Leaves the client: theta, and with "rsm" means of `of` training images.

    >>> FedBR(mu=0.0).lam
    1.0
    """

    name: ClassVar[str] = "fedbr"
    family: ClassVar[str] = "representation"
    needs: ClassVar[tuple[Need, ...]] = ("classes",)
    keeps: ClassVar[Literal["personal", "shared"]] = "shared"
    train: ClassVar[bool] = False
    gathers: ClassVar[bool] = True
    against_example_noise: ClassVar[str] = (
        "means of rows leave the client, and its contrast moves a projection that no clipped "
        "gradient bounds"
    )
    refuses: ClassVar[tuple[str, ...]] = ("fedcr",)  # whose logits are [n, S, K]
    # Table 12: lam 0.1 to 1; mu is 0.5.
    tunable: ClassVar[Tunable] = {"lam": Log(1e-2, 10), "mu": Log(0.05, 5)}
    lam: float = 1.0
    mu: float = 0.5
    tau1: float = 2.0
    tau2: float = 2.0
    pseudo: Literal["rsm", "mixture"] = "rsm"
    images: int | None = None
    of: int = 10
    refresh: bool = True
    balanced: bool = False
    proxy: str = "cifar100"
    mix: int = 1
    max_step: bool = True
    multiply: bool = False
    projection: Literal["paper", "published"] | None = "paper"
    theta_momentum: float | None = None

    def __post_init__(self) -> None:
        if not self.multiply and min(self.tau1, self.tau2) <= 0:
            raise BadInput("fedbr divides by tau1 and tau2: make both positive, or set multiply")
        if min(self.tau1, self.tau2) < 0:
            raise BadInput(f"tau1 and tau2 are 0 or more, not {self.tau1} and {self.tau2}")
        if not 0 <= (self.theta_momentum or 0) < 1:
            raise BadInput(f"theta_momentum is 0 or more and below 1, not {self.theta_momentum}")

    @property
    def before(self) -> tuple[str, ...]:  # type: ignore[override]
        """Clients make the first pseudo-images of their own data; a proxy set needs no client."""
        return ("pseudo",) if self.pseudo == "rsm" else ()

    @property
    def reveals(self) -> tuple[str, ...]:  # type: ignore[override]
        """Means of its own images leave a client only with "rsm"."""
        return ("row_means",) if self.pseudo == "rsm" else ()

    def extend(self, net: Net, clients: int) -> None:
        if net.not_numbers:
            raise BadInput(f"fedbr averages inputs, and this network reads {net.not_numbers}")
        net.add(self.name, self._projection(net), reads=None)

    def _projection(self, net: Net) -> nn.Module:
        """P_theta, from the d numbers of the representation."""
        d = net.shape_of(net.representation).numel()
        if self.projection is None:
            return nn.Identity()
        if self.projection == "paper":
            return perceptron(d, 256, 256, 128)
        return perceptron(d, 2 * d, 2 * d, d)

    # ------------------------------------------------------------------ pseudo-images

    def server_init(self, r: Round) -> State:
        return {} if self.pseudo == "rsm" else self._new_pseudo_images(r)

    def send(self, r: Round, cid: int) -> State:
        """The pseudo-images, and how many new ones the client shall make, where it shall."""
        state = broadcast_once.send(r, self.name, cid)
        if self.pseudo == "rsm" and (self.refresh or r.plan.kind == "special"):
            share = math.ceil(self._count(r) / max(1, len(r.cohort)))
            state = {self.name: {**state.get(self.name, {}), "share": torch.tensor(share)}}
        return state

    def special(self, s: Site) -> State:
        """Algorithm 2: this client's share of D_p."""
        count = int(s.down[self.name]["share"])
        x = sample_means(s.data.train, count, self.of, s.gen(self.name), self.balanced)
        return {self.name: {"x": x}}

    def finish(self, s: Site) -> State:
        if not self.refresh:
            return broadcast_once.keep(s, self.name)
        return self.special(s) if self.pseudo == "rsm" else {}

    def aggregate(self, r: Round) -> State:
        if self.refresh or r.plan.kind == "special":
            return self._new_pseudo_images(r)
        return {self.name: broadcast_once.mark_holders(r, self.name)}

    def _new_pseudo_images(self, r: Round) -> State:
        """D_p for the next round; no client has it yet."""
        gen = r.gen(self.name)
        if self.pseudo == "mixture":
            x = proxy_images(self.proxy, r.net.shape, self._count(r), self.of, gen)  # Algorithm 3
        else:
            shares = [up.state[self.name]["x"] for up in r.ups.values()]
            old = r.server.get(self.name, {}).get("x")
            x = pool_images(shares, old, self._count(r), gen)
        return {self.name: broadcast_once.start(r, {"x": x})}

    def _count(self, r: Round) -> int:
        """How many pseudo-images D_p has."""
        return self.images or r.method.opt.batch

    # ------------------------------------------------------------------ a local step

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        """What eq. (3) adds to CE(x, y), after the max step."""
        images = broadcast_once.received(s, self.name).get("x")
        if images is None or not (self.lam or self.mu):
            return 0.0
        x_p, y_p = self._pseudo_batch(images, b, s)
        out = self._outputs(x_p, s)
        loss: Tensor | float = 0.0
        if self.lam:
            loss = self.lam * s.task.loss(out[s.net.logits], y_p)  # component 1
        if self.mu:
            z_p = out[s.net.representation]
            z_g = self._features_of_received(x_p, s)
            z = b.out[s.net.representation]
            if self.max_step and self.projection:
                self._max_step(z_p, z_g, z, s)
            loss = loss + self.mu * self._contrast(z_p, z_g, z, s)  # component 2
        return loss

    @property
    def _mixes(self) -> bool:
        """Are pseudo-images mixed with the batch at every step?"""
        return self.pseudo == "mixture" and self.mix > 0

    def _pseudo_batch(self, images: Tensor, b: Batch, s: Site) -> tuple[Tensor, Tensor]:
        """x_p and its labels, 1/C for each class; mixed with the batch where that is wanted."""
        classes = s.data.classes
        y_p = torch.full((len(images), classes), 1 / classes, device=images.device)
        if not self._mixes:
            return images, y_p
        gen = s.memo.setdefault(self.name, s.gen(self.name))
        return mix_images(images, y_p, (b.x, b.target), self.mix, gen)  # eq. (4)

    def _outputs(self, x_p: Tensor, s: Site) -> dict[str, Tensor]:
        """All stages' outputs for pseudo-images, whose statistics do not enter BatchNorm's."""
        statistics = {k: s.w[k].clone() for k in s.net.match("@stats")}
        return s.net({**s.w, **statistics}, x_p, train=s.modes)

    def _features_of_received(self, x_p: Tensor, s: Site) -> Tensor:
        """phi_g(x_p); computed once a round where x_p is the same in all steps of it."""
        key = (self.name, "phi_g")
        if self._mixes or key not in s.memo:
            stage = s.net.representation
            with torch.no_grad():
                s.memo[key] = s.net(s.received, x_p, want=stage)[stage]
        z_g: Tensor = s.memo[key]
        return z_g

    def _max_step(self, z_p: Tensor, z_g: Tensor, z: Tensor, s: Site) -> None:
        """theta moves up the gradient of L_con, the features held fixed (line 8)."""
        theta = [s.w[k] for k in s.net.match(f"{self.name}.*")]
        fixed = (z_p.detach(), z_g.detach(), z.detach())
        velocity = s.memo.setdefault((self.name, "velocity", s.training, s.phase.name), [])
        ascend(lambda: self._contrast(*fixed, s), theta, s.lr, self._momentum(s), velocity)

    def _momentum(self, s: Site) -> float:
        """Of theta's steps."""
        if self.theta_momentum is not None:
            return self.theta_momentum
        opt = s.phase.over(s.opt).opt
        return opt.momentum if opt.name == "sgd" else 0.0

    def _contrast(self, z_p: Tensor, z_g: Tensor, z: Tensor, s: Site) -> Tensor:
        """L_con, equations (5)-(7), of pseudo-image j and image j of the batch."""
        n = min(len(z_p), len(z_g), len(z))

        def projected(features: Tensor) -> Tensor:
            return s.net.stage(s.w, self.name, features[:n].flatten(1), train=True)

        if self.multiply:
            scale_1, scale_2 = self.tau1, self.tau2
        else:
            scale_1, scale_2 = 1 / self.tau1, 1 / self.tau2
        return pair_contrast(projected(z_p), projected(z_g), projected(z), scale_1, scale_2)
