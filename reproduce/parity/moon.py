"""MOON against QinbinLi/MOON: the server's model and every upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.driving import (
    SKEWED,
    Classifier,
    all_used,
    loaders,
    run_script,
    uploads,
    without_a_gpu,
)
from reproduce.parity.harness import Batches, Parity, Recorded, empty_module, under

METHOD = (
    "fedavg(lr=0.1, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.00001)"
    " + model_contrast({})"
)


def with_projection() -> Net:
    """A seeded net whose body ends in a projection: what is contrasted is what the head reads."""
    with rng_scope("parity", "net with projection"):
        body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5))
        return Net((6,), body=body, head=nn.Linear(5, 4))


class Model(Classifier):
    """Their triple: features (which nobody reads), projection and logits."""

    def forward(self, x: Tensor) -> tuple[None, Tensor, Tensor]:
        z = self.body(x)
        return None, z, self.head(z)


def theirs(recorded: Recorded) -> list[Tree]:
    """Their main script; models are looked at where it measures accuracies."""
    members, of_clients = recorded.parity.data, loaders(recorded)
    sizes = [len(m.train) for m in members]
    y = np.concatenate([m.train.y.numpy() for m in members])
    sent: Tree = {}
    seen: list[Tree] = []

    def compute_accuracy(model: nn.Module, loader: object, **options: object) -> tuple[float, ...]:
        if isinstance(model, nn.DataParallel) and loader in of_clients:
            # Before and after its training; the later one stays.
            sent.update(under(f"client {of_clients.index(loader)}", model.module.state_dict()))
        elif not isinstance(model, nn.DataParallel) and not options.get("get_confusion_matrix"):
            seen.append({**under("server", model.state_dict()), **sent})
        return (0.0, 0.0, 0.0) if options.get("get_confusion_matrix") else (0.0, 0.0)

    def get_dataloader(*args: Any) -> tuple[object, ...]:
        own = Batches(members[0].test) if len(args) == 4 else of_clients[args[4][0]]
        return own, own, range(len(y)), range(1)

    owners = {cid: [cid] * n for cid, n in enumerate(sizes)}  # as long as the client's rows are
    empty_module(
        "utils",
        compute_accuracy=compute_accuracy,
        get_dataloader=get_dataloader,
        mkdirs=lambda folder: Path(folder).mkdir(parents=True, exist_ok=True),
        partition_data=lambda *_, **__: (None, y, None, y, owners, None),
    )
    empty_module("model", ModelFedCon=lambda *_: Model(recorded))
    options = {
        "alg": "moon",
        "dataset": "cifar10",
        "n_parties": len(members),
        "comm_round": len(recorded.rounds),
        "epochs": 2,
        "lr": 0.1,
        "mu": 2.0,
        "temperature": 0.5,
        "reg": 0.00001,
        "device": "cpu",
    }
    run_script("main", options)
    all_used(of_clients)
    return seen


PARITY = Parity(
    repository="QinbinLi/MOON",
    commit="8fcba3c4efc9a47eb24687a91ba94cfb2005103f",
    method=METHOD.format("mu=2.0, tau=0.5"),
    wrong=(METHOD.format("mu=1.0, tau=0.5"), METHOD.format("mu=2.0, tau=1.0")),
    data=SKEWED,
    net=with_projection,
    ours=uploads,
    theirs=theirs,
    patches=(without_a_gpu,),
)
