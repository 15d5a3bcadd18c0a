"""pFedHN against AvivSham/pFedHN: the hyper-network, the embeddings, and every upload."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, absent
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    federation,
    two_layers,
    under,
)

COHORTS = ((0,), (2,), (1,), (2,), (0,), (1,))
STEPS = 4
METHOD = (
    "pfedhn({}, server_decay=0.001, server_lr=0.1, depth=2, width=6, embedding=3, lr=0.1,"
    " steps=4, batch_size=5, momentum=0.9, weight_decay=0.0005)"
)
TRAINED = "clip=50.0, server_momentum=0.9, server_clip=50.0"


class HyperNetwork(nn.Module):
    """Our hyper-network in the place of theirs: an embedding to the tensors of a model by name."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        ours_ = initial(recorded)
        self.embeddings = nn.Embedding.from_pretrained(ours_.pop("embedding"), freeze=False)
        self.layers = nn.Sequential(
            nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 59)
        )
        self.layers.load_state_dict(ours_)
        self.shapes = {k: v.shape for k, v in Classifier(recorded).state_dict().items()}

    def forward(self, index: Tensor) -> dict[str, Tensor]:
        flat = self.layers(self.embeddings(index)[0])
        pieces = torch.split(flat, [shape.numel() for shape in self.shapes.values()])
        return {k: piece.view(self.shapes[k]) for k, piece in zip(self.shapes, pieces, strict=True)}


def initial(recorded: Recorded) -> Tree:
    """Embeddings and layers before the first round."""
    from fedloom.core.round import initial_server

    slice_ = initial_server(recorded.program)["pfedhn"]
    return {k: v.clone() for k, v in slice_.items() if not k.startswith("velocity/")}


def ours(recorded: Recorded) -> list[Tree]:
    """The server's slice without velocities, and the one upload of every round."""
    rounds = []
    for r in recorded.rounds:
        slice_ = r.server["pfedhn"]
        tree = under("server", {k: v for k, v in slice_.items() if not k.startswith("velocity/")})
        (cid,) = r.cohort
        rounds.append({**tree, **under("upload", r.up[cid].state["model"])})
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their training function, with our data, networks and choice of clients."""
    from experiments.pfedhn import trainer

    members = recorded.parity.data
    of_clients = [Batches(m.train) for m in members]
    for r in recorded.rounds:
        (cid,) = r.cohort
        # They begin a new pass for every batch.
        of_clients[cid].queue += [[batch] for epoch in r.epochs(cid) for batch in epoch]
    tests = [Batches(m.test) for m in members]
    nodes = SimpleNamespace(train_loaders=of_clients, test_loaders=tests, val_loaders=tests)
    seen: list[Tree] = []

    def measure(*args: Any, split: str) -> tuple[Any, ...]:
        _, _, hnet, net, *_ = args
        if split == "test":
            tree = under("server", hnet.layers.state_dict())
            tree |= under("server", {"embedding": hnet.embeddings.weight.detach()})
            seen.append({**tree, **under("upload", net.state_dict())})
        return {}, 0.0, 0.0, np.zeros(1)

    chosen = [r.cohort[0] for r in recorded.rounds]
    with (
        mock.patch.object(trainer, "BaseNodes", return_value=nodes),
        mock.patch.object(trainer, "CNNHyper", return_value=HyperNetwork(recorded)),
        mock.patch.object(trainer, "CNNTarget", return_value=Classifier(recorded)),
        mock.patch.object(trainer, "eval_model", measure),
        mock.patch.object(trainer.random, "choice", side_effect=chosen),
        tempfile.TemporaryDirectory() as folder,
    ):
        trainer.train(
            data_name="cifar10",
            data_path="",
            classes_per_node=0,
            num_nodes=len(members),
            steps=len(chosen),
            inner_steps=STEPS,
            optim="sgd",
            lr=0.1,
            inner_lr=0.1,
            embed_lr=None,
            wd=0.001,
            inner_wd=0.0005,
            embed_dim=3,
            hyper_hid=6,
            n_hidden=2,
            n_kernels=0,
            bs=5,
            device="cpu",
            eval_every=1,
            save_path=folder,
            seed=0,
        )
    return seen


PARITY = Parity(
    repository="AvivSham/pFedHN",
    commit="1bc054975232bdd6985f931030753ebbab48c56d",
    method=METHOD.format(TRAINED),
    wrong=(
        METHOD.format("clip=50.0, server_momentum=0.0, server_clip=50.0"),
        METHOD.format("clip=50.0, server_momentum=0.9, server_clip=0.01"),
    ),
    data=federation((24, 21, 27), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=ours,
    theirs=theirs,
    cohorts=COHORTS,
    patches=(absent("torchvision", "torchvision.transforms", "torchvision.datasets"),),
    deviations=(
        Deviation(
            what="the server's step",
            paper="plain gradient steps",
            code="momentum 0.9, weight decay 0.001, gradients clipped at 50 at server and client",
            flag="server_momentum=0.9, server_decay=0.001, server_clip=50, clip=50",
        ),
        Deviation(
            what="the hyper-network",
            paper="fully connected layers with ReLU, then a linear one",
            code="one more linear layer, without ReLU, before the last",
            flag="the program is given our hyper-network",
        ),
        Deviation(
            what="who takes part",
            paper="one client in a round",
            code="one client in a round",
            flag="cohorts of one; what several in a round do is a choice of ours",
        ),
    ),
)
