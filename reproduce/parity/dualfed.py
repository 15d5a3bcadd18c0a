"""DualFed against GuogangZhu/DualFed: encoder and both heads, projector, BatchNorm, predictions."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    empty_module,
    federation,
    module_of,
    under,
)

CLASSES = 4
METHOD = "dualfed({}, hidden=12, lr=0.01, epochs=2, batch_size=20, momentum=0.5)"
PUBLISHED = "lam=2.0, tau=0.2, ensemble=logits, frozen_eval=false"
THEIR_NAMES = {
    "global_encoder.": "body.",
    "local_projector.": "projector.",
    "local_C.": "personal_head.",
    "global_C.": "head.",
}


def network() -> Net:
    """An encoder with BatchNorm, whose running statistics stay local.

    Small batches under BatchNorm magnify rounding: layers and batches are as large as it takes to
    tell a rounding error from another reading.
    """
    with rng_scope("parity", "net", 0):
        body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        return Net((6,), body=body, head=nn.Linear(8, CLASSES))


class Model(nn.Module):
    """Both features and both heads' logits, as the author's client expects them."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        copies = module_of(recorded.program.nets[0])
        self.global_encoder, self.local_projector = copies.body, copies.projector
        self.local_C, self.global_C = copies.personal_head, copies.head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z = self.global_encoder(x)
        u = self.local_projector(z)
        return u, z, self.local_C(u), self.global_C(z)


def empty_torchvision() -> None:
    """torchvision, of which they take pretrained networks and transforms, is empty."""
    for name in ("torchvision", "torchvision.models", "torchvision.transforms"):
        empty_module(name, transforms=None, models=None)


def empty_matplotlib() -> None:
    """matplotlib, which only draws curves, is empty."""
    empty_module("matplotlib")
    empty_module("matplotlib.pyplot")


def empty_wandb() -> None:
    """wandb, which only logs, is empty."""
    empty_module("wandb")


def ours(recorded: Recorded) -> list[Tree]:
    """Every client's whole model after it received the new mean, and how many of its test rows the
    sum of both heads has right."""
    method, net = recorded.program.method, recorded.program.nets[0]
    trees = []
    for r in recorded.rounds:
        tree: Tree = {}
        for cid, kept in r.kept.items():
            model = {**r.server["model"], **kept["model"]}
            tree |= under(f"client {cid}", without_counts(model))
            rows = recorded.parity.data[cid].test
            correct = method.predict(net, {"model": model}, rows.inputs).argmax(1) == rows.y
            tree |= {f"client {cid}/accuracy": correct.double().mean()}
        trees.append(tree)
    return trees


def theirs(recorded: Recorded) -> list[Tree]:
    """Their clients, and their server's mean and what it sends."""
    from src.client import Client
    from src.server import Server

    args = Namespace(gpu=-1, optimizer="sgd", lr=0.01, momentum=0.5, local_ep=2, num_users=1)
    args.con_temp, args.con_lambda = 0.2, 2.0
    args.local_layers = "local_C,local_projector,running_mean,running_var"
    members = recorded.parity.data

    class Driven(Server):
        """Without data sets, folders and loggers."""

        def __init__(self) -> None:
            self.args, self.total_clients = args, len(members)
            self.domains = [str(cid) for cid in range(len(members))]
            self.clients = {domain: [Client(Model(recorded), args)] for domain in self.domains}

    server = Driven()
    trees = []
    for r in recorded.rounds:
        for cid, [client] in enumerate(server.clients.values()):
            loader = Batches(members[cid].train)
            loader.queue = list(r.epochs(cid))
            client.train(loader)
        server.average_weights()
        server.send_parameters()
        tree: Tree = {}
        for cid, [client] in enumerate(server.clients.values()):
            tree |= under(f"client {cid}", named(client.local_model))
            accuracy = client.inference(Batches(members[cid].test))["acc"]
            tree |= {f"client {cid}/accuracy": torch.tensor(accuracy, dtype=torch.float64)}
        trees.append(tree)
    return trees


def without_counts(model: Tree) -> Tree:
    """Without BatchNorm's counts of batches, which no computation reads."""
    return {k: v for k, v in model.items() if not k.endswith("num_batches_tracked")}


def named(model: Any) -> Tree:
    """Their weights under our names."""
    state = without_counts(model.state_dict())
    for theirs_, ours_ in THEIR_NAMES.items():
        state = {
            k.replace(theirs_, ours_) if k.startswith(theirs_) else k: v for k, v in state.items()
        }
    return state


PARITY = Parity(
    repository="GuogangZhu/DualFed",
    commit="73de9b813ee61073aaff4c4d238551afce75105c",
    method=METHOD.format(PUBLISHED),
    wrong=(
        METHOD.format(PUBLISHED.replace("frozen_eval=false", "frozen_eval=true")),
        METHOD.format(PUBLISHED.replace("tau=0.2", "tau=0.25")),
        METHOD.format(PUBLISHED.replace("lam=2.0", "lam=1.9")),
        METHOD.format(PUBLISHED + ", training=alternating"),
        METHOD.format(PUBLISHED + ", weighting=samples"),
    ),
    data=federation((40, 30, 36), CLASSES, held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)], test=9),
    net=network,
    ours=ours,
    theirs=theirs,
    patches=(empty_torchvision, empty_matplotlib, empty_wandb),
    deviations=(
        Deviation(
            what="sum of the two heads",
            paper="of normalised predictions",
            code="of logits",
            flag="ensemble=logits",
        ),
        Deviation(
            what="BatchNorm in the second stage",
            paper="encoder and projector are frozen",
            code="they run in training mode: h_s learns from features normalised by the batch, and"
            " running statistics move a second time",
            flag="frozen_eval=false",
        ),
        Deviation(
            what="order of the stages when a round has several epochs",
            paper="can be read as epoch by epoch",
            code="all epochs of the first stage, then all of the second",
            flag="training=stagewise, the default",
        ),
        Deviation(
            what="positive pairs in the contrast",
            paper="mean over an anchor's positive pairs",
            code="their sum over their number plus 0.000001",
            flag="none: the difference is as small as that",
        ),
        Deviation(
            what="BatchNorm's count of batches",
            paper="not stated",
            code="it is averaged, while the other running statistics stay local",
            flag="not compared: no computation reads it",
        ),
    ),
)
