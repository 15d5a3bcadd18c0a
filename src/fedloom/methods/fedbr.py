"""FedBR: debias the local classifier and features with pseudo-data and a min-max game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from fedloom.core.term import Term
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

    phi is the network up to its representation, omega its head, P_theta a projection beside it;
    all three are shared. D_p is a batch of pseudo-images with label 1/C. Each local step::

        max step  theta <- theta + lr grad L_con                                          line 8
        min step  CE(x, y) + lam CE(x_p, 1/C) + mu L_con over phi and omega         eq. (3), l.10
        L_con     -log f1 / (f1 + f2), f1 = exp(cos(P phi(x_p), P phi_g(x_p)) / tau1),
                  f2 = exp(cos(P phi(x_p), P phi(x)) / tau2)                          eq. (5)-(7)

    with phi_g the received phi. Pseudo-images: `pseudo="rsm"`, means of `of` images of one client
    (Algorithm 2); "mixture", means of `of` images of a public `proxy` data set (Algorithm 3),
    each averaged at every step with `mix` images of the batch, labels alike (eq. 4).

    Hyper-parameters: `lam` 1.0 (0.1 CIFAR-10, PACS), `mu` 0.5, `tau1` = `tau2` = 2.0, `of` 10
    (not in the paper), `images` None: as many as a batch; uniform weights, local steps (`steps=50,
    replacement=true`). `refresh`: new pseudo-images each round (the paper) or sent once;
    `balanced`: classes drawn alike (Figure 6d). Ablations: lam=0 or mu=0 leave one component,
    `max_step=False` (Table 4), `projection=None` (Figure 6a).

    Deviations: the code multiplies by tau (`multiply=True`), projects to width 2d and output d
    (`projection="published"`; the paper 256 and 128), draws pseudo-images once, and takes phi_g
    of the first step's mixture. theta takes plain steps; BatchNorm statistics are of real images.

    Leaves the client: theta, and with "rsm" means of `of` training images.

    >>> FedBR(mu=0.0).lam
    1.0
    """

    name: ClassVar[str] = "fedbr"
    family: ClassVar[str] = "representation"
    keeps: ClassVar[Literal["personal", "shared"]] = "shared"
    train: ClassVar[bool] = False
    gathers: ClassVar[bool] = True
    refuses: ClassVar[tuple[str, ...]] = ("fedcr",)  # whose logits are [n, S, K]
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

    def __post_init__(self):
        if not self.multiply and min(self.tau1, self.tau2) <= 0:
            raise BadInput("fedbr divides by tau1 and tau2: make both positive, or set multiply")

    def extend(self, net, clients):
        if not net.input_dtype.is_floating_point:
            raise BadInput("fedbr averages inputs, and this network reads token ids")
        d = net.shape_of(net.representation).numel()
        projection = perceptron(d, *((256, 128) if self.projection == "paper" else (2 * d, d)))
        net.add(self.name, nn.Identity() if self.projection is None else projection, reads=None)

    @property
    def before(self):  # type: ignore[override]
        return ("pseudo",) if self.pseudo == "rsm" else ()  # a proxy set asks no client

    def server_init(self, r):
        return {} if self.pseudo == "rsm" else self._drawn(r)

    def send(self, r, cid):
        state = broadcast_once.send(r, self.name, cid)
        if self.pseudo == "rsm" and (self.refresh or r.plan.kind == "special"):
            share = -(-(self.images or r.method.opt.batch) // max(1, len(r.cohort)))
            state = {self.name: {**state.get(self.name, {}), "share": torch.tensor(share)}}
        return state

    def special(self, s):  # Algorithm 2: this client's share of D_p
        count, gen = int(s.down[self.name]["share"]), s.gen(self.name)
        return {self.name: {"x": sample_means(s.data.train, count, self.of, gen, self.balanced)}}

    def loss(self, b, s):
        x, k = broadcast_once.received(s, self.name).get("x"), s.data.classes
        if x is None or not (self.lam or self.mu):
            return 0.0
        y = torch.full((len(x), k), 1 / k, device=x.device)
        if mixing := self.pseudo == "mixture" and self.mix > 0:
            gen = s.memo.setdefault(self.name, s.gen(self.name))
            x, y = mix_images(x, y, (b.x, b.target), self.mix, gen)  # eq. (4)
        statistics = {key: s.w[key].clone() for key in s.net.match("@stats")}
        out = s.net({**s.w, **statistics}, x, train=s.modes)
        loss = self.lam * s.task.loss(out[s.net.logits], y) if self.lam else 0.0  # component 1
        if self.mu:
            stage = s.net.representation
            if mixing or (self.name, "phi_g") not in s.memo:  # or the same images all round
                with torch.no_grad():
                    s.memo[self.name, "phi_g"] = s.net(s.received, x, want=stage)[stage]
            three = (out[stage], s.memo[self.name, "phi_g"], b.out[stage])
            if self.max_step and self.projection:
                theta = [s.w[key] for key in s.net.match(f"{self.name}.*")]  # line 8
                ascend(lambda: self._contrast(s, *(z.detach() for z in three)), theta, s.lr)
            loss = loss + self.mu * self._contrast(s, *three)  # component 2
        return loss

    def _contrast(self, s, *three):
        """Equations (5)-(7), pseudo-image j against image j of the batch."""
        n = min(map(len, three))
        z_p, z_g, z = (s.net.stage(s.w, self.name, v[:n].flatten(1), train=True) for v in three)
        scales = (self.tau1, self.tau2) if self.multiply else (1 / self.tau1, 1 / self.tau2)
        return pair_contrast(z_p, z_g, z, *scales)

    def finish(self, s):
        if not self.refresh:
            return broadcast_once.keep(s, self.name)
        return self.special(s) if self.pseudo == "rsm" else {}

    def aggregate(self, r):
        new = self.refresh or r.plan.kind == "special"
        return self._drawn(r) if new else {self.name: broadcast_once.mark_holders(r, self.name)}

    def _drawn(self, r):
        count, gen = self.images or r.method.opt.batch, r.gen(self.name)
        if self.pseudo == "mixture":
            x = proxy_images(self.proxy, r.net.shape, count, self.of, gen)  # Algorithm 3
        else:
            shares = [up.state[self.name]["x"] for up in r.ups.values()]
            x = pool_images(shares, r.server.get(self.name, {}).get("x"), count, gen)
        return {self.name: broadcast_once.start(r, {"x": x})}
