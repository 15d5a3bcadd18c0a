"""FedETF against ZexiLee/ICCV-2023-FedETF: the server's model, and personal ones at the end."""

from __future__ import annotations

from typing import Any

import torch

from fedloom.core.tree import Tree
from reproduce.parity.driving import without_a_gpu
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
    arguments,
    node,
    run,
)

METHOD = "fedetf({}, dim=4, lr=0.1, epochs=2, batch_size=5, weight_decay=0.001)"


def ours(recorded: Recorded) -> list[Tree]:
    """The server's model of every round; after the last, the personal models."""
    rounds = [under("server", r.server["model"]) for r in recorded.rounds]
    personal: Tree = {}
    for cid, state in recorded.adapted.kept.items():
        personal |= under(f"client {cid}", state["final/model"])
    return [*rounds, personal]


def begin(model: Model, initial: Tree) -> Model:
    """Their model with our initial values."""
    model.proto_classifier.proto = initial["head.vertices"].T.clone()
    with torch.no_grad():
        model.linear_proto.weight.copy_(initial["projection.1.weight"])
        model.linear_proto.bias.copy_(initial["projection.1.bias"])
        model.scaling_train.copy_(initial["head.beta"])
    return model


def named(model: Any) -> Tree:
    """Their tensors under our keys."""
    return {
        **{f"body.{k}": v for k, v in model.body.state_dict().items()},
        **{f"projection.1.{k}": v for k, v in model.linear_proto.state_dict().items()},
        "head.vertices": model.proto_classifier.proto.detach().T.contiguous(),
        "head.beta": model.scaling_train.detach(),
    }


def theirs(recorded: Recorded) -> list[Tree]:
    """Their updates of clients and server, then their personalization."""
    from client_funct import Client_personalization

    count = len(recorded.parity.data)
    clients = {
        cid: node(recorded, begin(Model(recorded), recorded.initial), cid) for cid in range(count)
    }
    server = node(recorded, begin(Model(recorded), recorded.initial), None)
    seen = [under("server", named(server.model)) for _ in run(recorded, "fedetf", clients, server)]
    tuned = recorded.adapted
    for cid in range(count):
        clients[cid].local_data.queue = tuned.epochs(cid)
    Client_personalization(arguments("fedetf"), clients, server, range(count))
    personal: Tree = {}
    for cid in range(count):
        personal |= under(f"client {cid}", named(clients[cid].model))
    return [*seen, personal]


PARITY = Parity(
    repository=REPOSITORY,
    commit=COMMIT,
    method=METHOD.format("gamma=1.0"),
    wrong=(
        METHOD.format("gamma=0.9"),
        METHOD.format("gamma=1.0, alternations=19"),
        METHOD.format("gamma=1.0, projection_lr=0.06"),
    ),
    data=federation((14, 11, 17)),
    net=two_layers,
    ours=ours,
    theirs=theirs,
    patches=(PACKAGES, without_a_gpu),
    deviations=(
        ABSENT_CLASSES,
        Deviation(
            what="momentum over rounds",
            paper="open",
            code="every client keeps its optimiser",
            flag="momentum 0, where both are the same",
        ),
    ),
)
