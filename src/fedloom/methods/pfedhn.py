"""pFedHN: a hyper-network on the server makes every client's model from its embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.func import functional_call

from fedloom.core.method import Method
from fedloom.core.net import METHOD, stage_of
from fedloom.core.sgd import clipped
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.hyper_network import hyper_network, pulled_back

EMBEDDING, VELOCITY = "embedding", "velocity/"


@register
@dataclass(frozen=True, kw_only=True)
class PFedHN(Method):
    """Personalized learning by hyper-networks (Shamsian et al., ICML 2021, Algorithm 1).

    The server holds a network h with weights phi and an embedding v_i per client. Each round::

        server    sends theta_i = h(v_i; phi)
        client i  theta_i' <- E epochs of SGD from theta_i
        server    g = J' (theta_i - theta_i'), J the Jacobian of h(v_i; phi) in (phi, v_i)
                  (phi, v_i) <- (phi, v_i) - alpha g, |g| at most 50

    Several clients' steps follow one another in the order of their ids, each from what h makes of
    v_i by then (from what was sent, the steps of 20 clients pile up and diverge); `together`: one
    step by the mean of their products. A newcomer's embedding is the mean of all. BatchNorm layers
    stay with the client: h's outputs begin near 0, and such scales hardly pass anything on.

    Hyper-parameters: `server_lr` alpha 0.01 (FedPAC: server and client 0.01), `depth` 3 and
    `width` 100 of h, `embedding` None: 1 + N/4, `server_clip` 50 (0: none), `server_momentum` 0.9
    and `server_decay` 1e-3 as published. `shared="* !head.* !@bn"`: pFedHN-PC, personal heads.

    Deviations: the sign is that of descent, as in the code. Algorithm 1 has neither momentum nor
    decay (0 and 0), and hardly learns in few rounds. The code has a linear layer more before the
    last and clips the clients' gradients at 50 too (set `clip`). The paper tunes a newcomer's
    embedding; here it stays at the mean. LayerNorm and GroupNorm are made like any other layer,
    with scales near 0 at first; leave them out by name (`shared="* !@bn !*.norm*"`).

    Leaves the client: its model. Neither h nor an embedding ever reaches a client.

    >>> PFedHN(embedding=8).server_lr
    0.01
    """

    name: ClassVar[str] = "pfedhn"
    family: ClassVar[str] = "personal model"
    gathers_model: ClassVar[str] = "*"
    no_global: ClassVar[str] = "every client's model is made for it"
    # They correct towards a model that all clients share.
    refuses: ClassVar[tuple[str, ...]] = ("client_momentum", "control_variates", "fedgen")
    shared: str = "* !@bn"
    server_lr: float = 0.01
    server_momentum: float = 0.9
    server_decay: float = 1e-3
    server_clip: float = 50.0
    depth: int = 3
    width: int = 100
    embedding: int | None = None
    together: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.depth < 0 or self.width < 1 or (self.embedding is not None and self.embedding < 1):
            raise BadInput("pfedhn: depth is 0 or more, width and embedding 1 or more")
        if self.server_clip < 0 or self.server_decay < 0 or not 0 <= self.server_momentum < 1:
            raise BadInput("server_clip and server_decay are 0 or more, server_momentum below 1")

    def shared_keys(self, net):
        keys = super().shared_keys(net)
        for k in sorted(keys):
            if (owner := net.owner[stage_of(k)]) != METHOD:
                raise BadInput(
                    f"pfedhn and {owner} cannot be combined, for the hyper-network does not make"
                    f" the shared tensor {k!r}; leave one out"
                )
        return keys & net.params

    def _made(self, net):
        """What h makes, in the order it makes it."""
        keys = self.shared_keys(net)
        return {k: v for k, v in net.initial.items() if k in keys}

    def extend(self, net, clients):
        made = self._made(net)
        if not made:
            raise BadInput(f"pfedhn has nothing to make: shared={self.shared!r} has no parameter")
        out, dtype = sum(v.numel() for v in made.values()), next(iter(made.values())).dtype
        sizes = (self._dim(clients), self.width, self.depth, out)
        net.tools[self.name] = hyper_network(*sizes, dtype)

    def _dim(self, clients):
        return self.embedding or 1 + clients // 4

    def server_init(self, r):
        h = r.net.tools[self.name].state_dict()
        size = (r.plan.clients, self._dim(r.plan.clients))
        v = torch.randn(size, generator=r.gen(EMBEDDING), dtype=next(iter(h.values())).dtype)
        phi = {EMBEDDING: v, **h}
        still = {VELOCITY + k: torch.zeros_like(x) for k, x in phi.items() if self.server_momentum}
        return {self.name: phi | still}

    def _weights(self, r, phi, cid):
        """theta_i, all tensors in one vector."""
        rows = phi[EMBEDDING]
        v = rows[cid] if 0 <= cid < len(rows) else rows.mean(0)
        h = {k: x for k, x in phi.items() if k != EMBEDDING and not k.startswith(VELOCITY)}
        return functional_call(r.net.tools[self.name], h, (v,))

    def send(self, r, cid):
        made, theta = self._made(r.net), self._weights(r, r.server[self.name], cid)
        pieces = zip(made.items(), theta.split([v.numel() for v in made.values()]), strict=True)
        return {"model": {k: piece.view(v.shape).to(v.dtype) for (k, v), piece in pieces}}

    def aggregate(self, r):
        state = r.server[self.name]
        for cids in [list(r.ups)] if self.together else [[cid] for cid in r.ups]:
            state = self._stepped(r, state, cids)
        return {self.name: state}

    def _stepped(self, r, state, cids):
        """One step by the mean over these clients of J' (theta - trained)."""
        phi = {k: v for k, v in state.items() if not k.startswith(VELOCITY)}
        fall = torch.stack([self._fall(r, phi, cid) for cid in cids]) / len(cids)
        g = pulled_back(
            lambda p: torch.stack([self._weights(r, p, cid) for cid in cids]), phi, fall
        )
        if self.server_clip:
            g = dict(zip(g, clipped(list(g.values()), self.server_clip), strict=True))
        new = {}
        for k, v in phi.items():
            way = g[k] + self.server_decay * v
            if self.server_momentum:
                way = new[VELOCITY + k] = self.server_momentum * state[VELOCITY + k] + way
            new[k] = v - self.server_lr * way
        return new

    def _fall(self, r, phi, cid):
        """theta_i as it is made now less theta_i as trained."""
        trained, now = r.ups[cid].state["model"], self._weights(r, phi, cid)
        return now - torch.cat([trained[k].flatten().to(now.dtype) for k in self._made(r.net)])
