"""FedBR: debias the local classifier and features with pseudo-data and a min-max game."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fedloom.core.term import Term
from fedloom.methods import register
from fedloom.ops.contrastive import pair_contrast
from fedloom.ops.pseudo_data import proxy_images, sample_means


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
    (not in the paper), `images` None: as many as a batch. Use local steps (`steps=50,
    replacement=true`). `refresh`: new pseudo-images each round (the paper) or once; `balanced`:
    classes drawn alike (Figure 6d). Ablations: lam=0 or mu=0 leave one component (Table 4),
    `max_step=False`, `projection="none"` (Figure 6a).

    Deviations: the code multiplies by tau (`multiply=True`), uses a projection of width 2d and
    output d (`projection="published"`; the paper 256 and 128) and draws pseudo-images once. With
    "mixture" it compares phi_g on the first step's mixture; here both see the same input.

    Leaves the client: theta, and with "rsm" means of `of` training images.

    >>> FedBR(mu=0.0).lam
    1.0
    """

    name: ClassVar[str] = "fedbr"
    keeps: ClassVar[Literal["personal", "shared"]] = "shared"
    train: ClassVar[bool] = False
    gathers: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("pseudo",)
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
    projection: Literal["paper", "published", "none"] = "paper"

    def extend(self, net, clients):
        d = net.shape_of(net.representation).numel()
        width, out = (256, 128) if self.projection == "paper" else (2 * d, d)
        layers = [nn.Linear(d, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        made = nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, out))
        net.add(self.name, nn.Identity() if self.projection == "none" else made, reads=None)

    # ------------------------------------------------------------------ pseudo-data

    def special(self, s):
        return self._uploaded(s)

    def finish(self, s):
        return self._uploaded(s) if self.refresh else {}

    def _uploaded(self, s):
        """Algorithm 2: this client's share of the pseudo-images."""
        if self.pseudo == "mixture":
            return {}
        count = -(-self._batch(s.method) // s.plan.clients)
        gen = s.gen(self.name)
        x = sample_means(s.data.train, count, self.of, gen, self.balanced)
        return {self.name: {"x": x}}

    def aggregate(self, r):
        if r.plan.kind != "special" and not self.refresh:
            return {}
        count, gen = self._batch(r.method), r.gen(self.name)
        if self.pseudo == "mixture":
            return {self.name: {"x": proxy_images(self.proxy, r.net.shape, count, self.of, gen)}}
        x = torch.cat([up.state[self.name]["x"] for up in r.ups.values()])
        return {self.name: {"x": x[torch.randperm(len(x), generator=gen)[:count]]}}

    def _batch(self, method):
        return self.images or method.opt.batch

    def _pseudo_batch(self, b, s):
        """Pseudo-images and their soft labels at this step."""
        x, k = s.down[self.name]["x"], s.data.classes
        y = torch.full((len(x), k), 1 / k, device=x.device)
        if self.pseudo == "rsm" or not self.mix:
            return x, y
        gen = s.memo.setdefault((self.name, "mix"), s.gen((self.name, "mix")))
        rows = torch.randint(len(b.y), (len(x), self.mix), generator=gen)
        labels = F.one_hot(b.y, k).to(x.dtype)
        x = (x + b.x[rows].sum(1)) / (self.mix + 1)  # eq. (4)
        return x, (y + labels[rows].sum(1)) / (self.mix + 1)

    # ------------------------------------------------------------------ the game

    def loss(self, b, s):
        if not self.lam and not self.mu:
            return 0.0
        x, y = self._pseudo_batch(b, s)
        out = s.net(s.w, x, train=s.modes)
        loss = self.lam * s.task.loss(out[s.net.logits], y) if self.lam else 0.0  # component 1
        if self.mu:
            stage = s.net.representation
            z_p, z = out[stage].flatten(1), b.out[stage].flatten(1)
            z_g = self._received_features(x, s)
            if self.max_step and self.projection != "none":
                self._ascend(s, z_p.detach(), z_g, z.detach())
            loss = loss + self.mu * self._contrast(s, z_p, z_g, z)  # component 2
        return loss

    def _received_features(self, x, s):
        """phi_g(x_p); unmixed pseudo-images are the same all round, so once."""
        if self.name in s.memo and (self.pseudo == "rsm" or not self.mix):
            return s.memo[self.name]
        stage = s.net.representation
        with torch.no_grad():
            s.memo[self.name] = s.net(s.received, x, want=stage)[stage].flatten(1)
        return s.memo[self.name]

    def _contrast(self, s, z_p, z_g, z):
        """Equations (5)-(7), pseudo-image j against image j of the batch."""
        n = min(len(z_p), len(z))
        z_p, z_g, z = (s.net.stage(s.w, self.name, v[:n], train=True) for v in (z_p, z_g, z))
        scales = (self.tau1, self.tau2) if self.multiply else (1 / self.tau1, 1 / self.tau2)
        return pair_contrast(z_p, z_g, z, *scales)

    def _ascend(self, s, z_p, z_g, z):
        """Line 8: one ascent step on theta alone."""
        theta = [v.requires_grad_() for k, v in s.w.items() if k.startswith(f"{self.name}.")]
        up = torch.autograd.grad(self._contrast(s, z_p, z_g, z), theta)
        with torch.no_grad():
            for v, g in zip(theta, up, strict=True):
                v.add_(g, alpha=s.lr)
        for v in theta:
            v.requires_grad_(False)
