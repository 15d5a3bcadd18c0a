"""FedBN against med-air/FedBN: the shared layers and every client's BatchNorm."""

from __future__ import annotations

from argparse import Namespace

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.driving import absent, models
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    federation,
    module_of,
    under,
)

METHOD = "fedbn({}, lr=0.1, epochs=2, batch_size=5)"
OUR_KEYS = {"fc1": "body.0", "bn1": "body.1", "fc2": "head"}


def with_batch_norm() -> Net:
    """A seeded net with a BatchNorm layer."""
    with rng_scope("parity", "net with BatchNorm"):
        body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.LeakyReLU())
        return Net((6,), body=body, head=nn.Linear(5, 4))


class Model(nn.Module):
    """Their BatchNorm layers are those with `bn` in their names."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        copies = module_of(recorded.program.nets[0])
        self.fc1, self.bn1, self.activation = copies.body
        self.fc2 = copies.head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(self.activation(self.bn1(self.fc1(x))))
        return logits


def named(model: Model, *layers: str) -> Tree:
    """Tensors of these layers under our keys."""
    tree: Tree = {}
    for layer in layers:
        state = model.get_submodule(layer).state_dict()
        tree |= {f"{OUR_KEYS[layer]}.{k}": v for k, v in state.items()}
    return tree


def theirs(recorded: Recorded) -> list[Tree]:
    """Their training of an epoch and their communication."""
    import fed_digits

    members = recorded.parity.data
    of_clients = [Batches(m.train) for m in members]
    server, clients = Model(recorded), [Model(recorded) for _ in members]
    fed_digits.client_num = len(members)
    seen = []
    for r in recorded.rounds:
        for cid, client in enumerate(clients):
            of_clients[cid].queue = r.epochs(cid)
            optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
            for _ in range(2):
                fed_digits.train(
                    client, of_clients[cid], optimizer, nn.CrossEntropyLoss(), None, "cpu"
                )
        weights = [1 / len(members)] * len(members)
        fed_digits.communication(Namespace(mode="fedbn"), server, clients, weights)
        tree = under("server", named(server, "fc1", "fc2"))
        for cid, client in enumerate(clients):
            tree |= under(f"client {cid}", named(client, "bn1"))
        seen.append(tree)
    return seen


PARITY = Parity(
    repository="med-air/FedBN",
    commit="2fa38adf627a8c8ba71c5fb515b1f2ba00aa8812",
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.5")),
    # Last batches of three and four rows: two have no stable deviation.
    data=federation((14, 13, 18), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=with_batch_norm,
    ours=models,
    theirs=theirs,
    folder="federated",
    patches=(absent("torchvision", "torchvision.transforms"),),
    deviations=(
        Deviation(
            what="weights of the clients",
            paper="the same for every client",
            code="the same for every client",
            flag="weighting=uniform; by samples is our default",
        ),
    ),
)
