"""pFedHN: a hyper-network on the server makes every client's model from its embedding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net, stage_of
from fedloom.core.optimizers import clipped
from fedloom.core.phase import Opt
from fedloom.core.round import Round
from fedloom.core.tree import State, Tree
from fedloom.core.tunable import Log, Tunable
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.ops.hyper_network import hyper_network, vector_jacobian_product

EMBEDDING = "embedding"
"""Key of the embeddings v [N, dim] in the server's slice."""
VELOCITY = "velocity/"
"""Prefix, in the server's slice, of what momentum remembers of a tensor."""


@register
@dataclass(frozen=True, kw_only=True)
class PFedHN(Method):
    """Personalized learning by hyper-networks (Shamsian et al., ICML 2021, Algorithm 1).

    The server holds a network h with weights phi, and an embedding v_i of every client. Each
    round::

        server    sends theta_i = h(v_i; phi)
        client i  theta_i' <- E epochs of SGD from theta_i
        server    g = J' (theta_i - theta_i'), J being the Jacobian of h(v_i; phi) in (phi, v_i)
                  (phi, v_i) <- (phi, v_i) - alpha g, with |g| clipped at 50

    With several participants, the server takes one step for each, in the order of their ids;
    `together=True` takes a single step, by the mean of their g. A newcomer gets the model of the
    mean embedding. BatchNorm layers stay with the client: the outputs of h begin near 0, and a
    BatchNorm layer with such a scale passes hardly anything on.

    Hyper-parameters: `server_lr` is alpha, 0.01 (FedPAC: 0.01 at server and clients). `depth` 3 and
    `width` 100 are those of h. `embedding`, the dimension of v_i; None: 1 + N/4. `server_clip` 50
    (0: no clipping), `server_momentum` 0.9 and `server_decay` 1e-3, as published, and so is the
    bound on the clients' gradients, `clip` 50 unless the run or the method sets another (0: none).
    `shared="* !head.* !@bn"` is pFedHN-PC, with personal heads.

    Deviations: the sign is that of descent, as in the published code. Algorithm 1 has neither
    momentum nor weight decay (`server_momentum=0`, `server_decay=0`), and hardly learns in few
    rounds; nor does it clip. One client takes part in its rounds. Here each step of a round with
    several uses theta_i as h makes it by then, not as it was sent: from what was sent, the steps of
    20 clients add up and diverge. The published code has one more linear layer before the last. The
    paper tunes a newcomer's embedding; here it stays at
    the mean. LayerNorm and GroupNorm are made by h like any other layer, with scales near 0 at
    first; leave them out by name (`shared="* !@bn !*.norm*"`).

    Leaves the client: its model. Neither h nor an embedding is ever sent to a client.

    >>> PFedHN(embedding=8).server_lr
    0.01
    """

    name: ClassVar[str] = "pfedhn"
    family: ClassVar[str] = "personal model"
    reveals: ClassVar[tuple[str, ...]] = ()
    against_example_noise: ClassVar[str] = ""
    personal_model: ClassVar[bool] = True
    gathers_model: ClassVar[str] = "*"
    no_global: ClassVar[str] = "every client's model is made for it"
    # They correct towards a model that all clients share.
    refuses: ClassVar[tuple[str, ...]] = ("client_momentum", "control_variates", "fedgen")
    tunable: ClassVar[Tunable] = {"server_lr": Log(1e-3, 0.1)}
    shared: str = "* !@bn"
    opt: Opt = field(default_factory=lambda: Opt(clip=50.0))
    server_lr: float = 0.01
    server_momentum: float = 0.9
    server_decay: float = 1e-3
    server_clip: float = 50.0
    depth: int = 3
    width: int = 100
    embedding: int | None = None
    together: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth < 0 or self.width < 1 or (self.embedding is not None and self.embedding < 1):
            raise BadInput("pfedhn: depth is 0 or more, width and embedding 1 or more")
        if self.server_clip < 0 or self.server_decay < 0 or not 0 <= self.server_momentum < 1:
            raise BadInput("server_clip and server_decay are 0 or more, server_momentum below 1")

    # ------------------------------------------------------------------ the hyper-network

    def shared_keys(self, net: Net) -> frozenset[str]:
        """The parameters that h makes; buffers stay with the client."""
        keys = super().shared_keys(net)
        for k in sorted(keys):
            if (owner := net.owner[stage_of(k)]) != METHOD:
                raise BadInput(
                    f"pfedhn and {owner} cannot be combined, for the hyper-network does not make"
                    f" the shared tensor {k!r}; leave one out"
                )
        return keys & net.params

    def _templates(self, net: Net) -> Tree:
        """A tensor of the right shape and type for each that h makes, in h's order."""
        keys = self.shared_keys(net)
        return {k: v for k, v in net.initial.items() if k in keys}

    def _embedding_dim(self, clients: int) -> int:
        return self.embedding or 1 + clients // 4

    def extend(self, net: Net, clients: int) -> None:
        templates = self._templates(net)
        if not templates:
            raise BadInput(f"pfedhn has nothing to make: shared={self.shared!r} has no parameter")
        net.tools[self.name] = hyper_network(
            self._embedding_dim(clients),
            self.width,
            self.depth,
            out=sum(template.numel() for template in templates.values()),
            dtype=next(iter(templates.values())).dtype,
        )

    def _theta(self, r: Round, phi: Tree, cid: int) -> Tensor:
        """theta_i = h(v_i; phi), all tensors in one vector. `phi` holds the embeddings too."""
        embeddings = phi[EMBEDDING]
        is_member = 0 <= cid < len(embeddings)
        v_i = embeddings[cid] if is_member else embeddings.mean(0)
        weights = {k: x for k, x in phi.items() if k != EMBEDDING}
        theta: Tensor = functional_call(r.net.tools[self.name], weights, (v_i,))
        return theta

    # ------------------------------------------------------------------ the server's hooks

    def server_init(self, r: Round) -> State:
        weights = r.net.tools[self.name].state_dict()
        embeddings = torch.randn(
            (r.plan.clients, self._embedding_dim(r.plan.clients)),
            generator=r.gen(EMBEDDING),
            dtype=next(iter(weights.values())).dtype,
        )
        state: Tree = {EMBEDDING: embeddings, **weights}
        if self.server_momentum:
            state |= {VELOCITY + k: torch.zeros_like(x) for k, x in state.items()}
        return {self.name: state}

    def send(self, r: Round, cid: int) -> State:
        templates = self._templates(r.net)
        theta = self._theta(r, _without_velocity(r.server[self.name]), cid)
        sizes = [template.numel() for template in templates.values()]
        model: Tree = {}
        for (k, template), piece in zip(templates.items(), torch.split(theta, sizes), strict=True):
            model[k] = piece.view(template.shape).to(template.dtype)
        return {"model": model}

    def aggregate(self, r: Round) -> State:
        state = r.server[self.name]
        if self.together:
            return {self.name: self._stepped(r, state, list(r.ups))}
        for cid in r.ups:
            state = self._stepped(r, state, [cid])
        return {self.name: state}

    def _stepped(self, r: Round, state: Tree, cids: list[int]) -> Tree:
        """The server's slice after one step by the mean of these clients' J' (theta - theta')."""
        phi = _without_velocity(state)

        def theta(phi: Tree) -> Tensor:
            return torch.stack([self._theta(r, phi, cid) for cid in cids])

        trained = torch.stack([self._trained(r, cid, phi[EMBEDDING].dtype) for cid in cids])
        g = vector_jacobian_product(theta, phi, (theta(phi) - trained) / len(cids))
        if self.server_clip:
            g = dict(zip(g, clipped(list(g.values()), self.server_clip), strict=True))
        return self._descended(state, g)

    def _trained(self, r: Round, cid: int, dtype: torch.dtype) -> Tensor:
        """theta_i', the client's upload, in one vector."""
        upload = r.ups[cid].state["model"]
        return torch.cat([upload[k].flatten().to(dtype) for k in self._templates(r.net)])

    def _descended(self, state: Tree, g: Tree) -> Tree:
        """(phi, v) - alpha g, with weight decay and momentum."""
        new: Tree = {}
        for k in g:
            direction = g[k] + self.server_decay * state[k]
            if self.server_momentum:
                direction = self.server_momentum * state[VELOCITY + k] + direction
                new[VELOCITY + k] = direction
            new[k] = state[k] - self.server_lr * direction
        return new


def _without_velocity(state: Tree) -> Tree:
    """phi and the embeddings: the part of the server's slice that is descended on."""
    return {k: x for k, x in state.items() if not k.startswith(VELOCITY)}
