"""Fed-RoD against ZexiLee/ICCV-2023-FedETF: the generic model and every client's personal head.

Fed-RoD's own repository, hongyouc/Fed-RoD, holds no program; FedETF's authors compare with this.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import models, without_a_gpu
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Recorded,
    federation,
    two_layers,
    under,
)
from reproduce.parity.zexi_fedetf import (
    ABSENT_CLASSES,
    COMMIT,
    PACKAGES,
    REPOSITORY,
    Model,
    node,
    run,
)

METHOD = "fedrod({}, lr=0.1, epochs=2, batch_size=5)"


def begin(model: Model, initial: Tree) -> Model:
    """Their model with our initial values."""
    with torch.no_grad():
        model.linear_head.weight.copy_(initial["head.weight"])
        model.linear_head.bias.copy_(initial["head.bias"])
    return model


def client(recorded: Recorded, cid: int) -> Any:
    """A client of theirs, whose personal head begins at zero."""
    made = node(recorded, begin(Model(recorded), recorded.initial), cid)
    made.p_head = copy.deepcopy(made.model.linear_head)
    nn.init.zeros_(made.p_head.weight)
    nn.init.zeros_(made.p_head.bias)
    return made


def theirs(recorded: Recorded) -> list[Tree]:
    """Their updates of clients and server."""
    clients = {cid: client(recorded, cid) for cid in range(len(recorded.parity.data))}
    server = node(recorded, begin(Model(recorded), recorded.initial), None)
    seen = []
    for _ in run(recorded, "fedrod", clients, server):
        body, head = server.model.body.state_dict(), server.model.linear_head.state_dict()
        tree = under("server", {f"body.{k}": v for k, v in body.items()})
        tree |= under("server", {f"head.{k}": v for k, v in head.items()})
        for cid, one in clients.items():
            own = {f"personal_head.{k}": v for k, v in one.p_head.state_dict().items()}
            tree |= under(f"client {cid}", own)
        seen.append(tree)
    return seen


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("gamma=1.0"),
    wrong=(METHOD.format("gamma=0.9"), METHOD.format("gamma=1.0, weighting=uniform")),
    data=federation((14, 11, 17)),
    net=two_layers,
    ours=models,
    theirs=theirs,
    patches=(PACKAGES, without_a_gpu),
    deviations=(
        Deviation(
            what="where personal heads begin",
            paper="open",
            code="at the generic head, added to it",
            flag="the program is given heads of zero",
        ),
        ABSENT_CLASSES,
        Deviation(
            what="weight decay and momentum of personal heads",
            paper="open",
            code="none, whatever the model has",
            flag="none for both",
        ),
    ),
)
