"""FedCR against haozzh/FedCR: body, heads, the clients' and the server's Gaussians, final heads."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedloom.core.evaluate import FINAL
from fedloom.core.net import Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Played,
    Recorded,
    empty_module,
    federation,
    module_of,
    under,
)

CLASSES, PIXELS, DIM, SAMPLES, RATE, BATCH = 4, 784, 3, 5, 0.05, 5
METHOD = "fedcr({}, dim=3, samples=5, adapt_epochs=3, lr=0.05, epochs=2, batch_size=5, clip=10.0)"
PUBLISHED = "beta=0.02, likelihood=mean, ensemble=logits"
THEIR_NAMES = {
    "fc1": "body.0",
    "fc2": "body.2",
    "fc3": "gauss.fc",
    "fc4": "head",
}
"""Layer of their network for EMNIST -> ours."""


def network() -> Net:
    """Their network for EMNIST with narrow layers."""
    with rng_scope("parity", "net"):
        body = nn.Sequential(nn.Linear(PIXELS, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU())
        return Net((PIXELS,), body=body, head=nn.Linear(6, CLASSES))


def empty_torchvision() -> None:
    """torchvision, of which they take data sets, is empty."""
    empty_module("torchvision", transforms=None)
    empty_module("torchvision.transforms")


def ours(recorded: Recorded) -> list[Tree]:
    """The server's body and Gaussians, the clients' heads, and the products of those who took
    part; in the last round also the heads after fine-tuning."""
    trees = []
    for r in recorded.rounds:
        tree = under("server", r.server["model"]) | under("server", r.server["fedcr"])
        for cid, kept in r.kept.items():
            tree |= under(f"client {cid}", kept["model"])
        for cid in r.cohort:
            product = r.up[cid].state["fedcr"]
            precision, held = product["precision"], product["precision"] > 0
            mu = torch.where(held, product["precision_mean"] / precision, 0.0)
            sigma = torch.where(held, precision**-0.5, 1.0)
            tree |= under(f"client {cid}", {"mu": mu, "sigma": sigma})
        trees.append(tree)
    assert recorded.adapted is not None
    for cid, kept in recorded.adapted.kept.items():
        heads = {k: v for k, v in kept[FINAL + "model"].items() if k.startswith("head.")}
        trees[-1] |= under(f"client {cid} tuned", heads)
    return trees


def theirs(recorded: Recorded) -> list[Tree]:
    """Their clients and server; the loop around them is a script of theirs and is written here."""
    from models import distributed_training_utils as training
    from models.Nets_VIB import client_model_VIB

    args = Namespace(method="FedCR", device="cpu", dataset="EMNIST", dimZ=DIM, beta=0.02, beta2=1.0)
    args.lr, args.momentum, args.weigh_delay, args.num_avg_train = RATE, 0.0, 0.0, SAMPLES
    args.local_bs, args.local_ep, args.last_local_ep, args.local_rep_ep = BATCH, 2, 3, 1

    class Model(client_model_VIB):
        """Their network with our layers, which draws the noise that fedloom drew."""

        def __init__(self) -> None:
            super().__init__(args, DIM, 0, "EMNIST")
            copies = module_of(recorded.program.nets[0])
            self.fc1, self.fc2 = copies.body[0], copies.body[2]
            self.fc3, self.fc4 = copies.gauss.fc, copies.head
            self.noise: list[Tensor] = []

        def gaussian_noise(self, num_samples: tuple[int, int], K: int) -> Tensor:
            return self.noise.pop(0)

    clients = []
    for cid, m in enumerate(recorded.parity.data):
        x, y = m.train.inputs, m.train.y
        with mock.patch.object(training, "Dataset", return_value=TensorDataset(x, y)):
            client = training.Client(Model(), args, x, y, x, y, CLASSES, "EMNIST", cid)
        client.trn_gen = Batches(m.train)
        clients.append(client)
    server = training.Server(Model(), args, CLASSES)
    shared = [k for k in server.W if not k.startswith("fc4")]

    def train(r: Played, last: bool) -> None:
        for cid in r.cohort:
            clients[cid].trn_gen.queue = list(r.epochs(cid))
            clients[cid].model.noise = noise_of(r, cid)
            clients[cid].synchronize_with_server(server, shared)
            clients[cid].compute_weight_update(shared, server, last)

    trees = []
    for r in recorded.rounds:
        train(r, last=False)
        participants = [clients[cid] for cid in r.cohort]
        server.aggregate_weight_updates(participants, r.plan.t)
        server.global_POE(participants)
        trees.append(named(server, clients, r.cohort))
    assert recorded.adapted is not None
    train(recorded.adapted, last=True)
    for cid, client in enumerate(clients):
        trees[-1] |= under(f"client {cid} tuned", layers(client, "fc4"))
    return trees


def noise_of(r: Played, cid: int) -> list[Tensor]:
    """What a client of fedloom drew in a round, batch by batch, samples first as theirs."""
    with rng_scope(*r.plan.key, cid, "layers", "model", 1):
        sizes = [len(idx) for epoch in r.epochs(cid) for idx in epoch]
        return [torch.randn(n, SAMPLES, DIM).transpose(0, 1) for n in sizes]


def named(server: Any, clients: list[Any], cohort: list[int]) -> Tree:
    """Their tensors of one round under our names."""
    tree = under("server", layers(server, "fc1", "fc2", "fc3"))
    gaussians = {"mu": server.dir_global_Z_u, "sigma": server.dir_global_Z_sigma}
    tree |= under("server", {k: v.squeeze(1) for k, v in gaussians.items()})
    for cid, client in enumerate(clients):
        tree |= under(f"client {cid}", layers(client, "fc4"))
    for cid in cohort:
        product = {"mu": clients[cid].dir_Z_u, "sigma": clients[cid].dir_Z_sigma}
        tree |= under(f"client {cid}", {k: v.squeeze(1) for k, v in product.items()})
    return tree


def layers(device: Any, *names: str) -> Tree:
    """Some layers of a client or the server."""
    return {
        f"{THEIR_NAMES[name]}.{leaf}": device.W[f"{name}.{leaf}"].detach()
        for name in names
        for leaf in ("weight", "bias")
    }


PARITY = Parity(
    repository="haozzh/FedCR",
    commit="e5f0baab9730bef7da95cdf9ec63d1f5faafb8e8",
    folder="code_FedCR",
    method=METHOD.format(PUBLISHED),
    wrong=(
        METHOD.format(PUBLISHED.replace("likelihood=mean", "likelihood=expected")),
        METHOD.format(PUBLISHED.replace("beta=0.02", "beta=0.01")),
        METHOD.format(PUBLISHED + ", tau=2.0"),
        METHOD.format(PUBLISHED + ", weighting=samples"),
        METHOD.format(PUBLISHED).replace("clip=10.0", "clip=0.0"),
    ),
    # So wide that gradients are clipped.
    data=federation(
        (14, 11, 17), CLASSES, (PIXELS,), held=[(0, 1, 2), (1, 2), (0, 1, 2, 3)], scale=4.0
    ),
    net=network,
    ours=ours,
    theirs=theirs,
    cohorts=(None, None, None, (0, 1)),
    patches=(empty_torchvision,),
    deviations=(
        Deviation(
            what="likelihood",
            paper="minus the logarithm of the mean probability over the samples of z",
            code="the mean of the cross-entropies over the samples of z",
            flag="likelihood=mean",
        ),
        Deviation(
            what="prediction",
            paper="mean of probabilities",
            code="mean of logits",
            flag="ensemble=logits; predictions are not compared",
        ),
        Deviation(
            what="gradient clipping",
            paper="none",
            code="at norm 10",
            flag="clip=10.0",
        ),
        Deviation(
            what="the prior in the product of experts",
            paper="once per client in eq. (9), once in eq. (6)",
            code="once",
            flag="once is also fedloom's reading",
        ),
        Deviation(
            what="how the server's Gaussians move",
            paper="they are replaced",
            code="a moving mean with weight beta2, 0 by default and 1 in the instructions",
            flag="the program runs with beta2 = 1",
        ),
    ),
)
