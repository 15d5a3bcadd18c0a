"""APPLE against ljaiverson/pFL-APPLE: every client's core and its relationships p."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import SKEWED, Classifier, absent
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    two_layers,
    under,
)

METHOD = (
    "apple({}, p_lr=0.02, fade_rounds=2, lr=0.1, epochs=2, batch_size=5, momentum=0.9, decay=0.9)"
)
OUR_KEYS = {"fc1": "body.0", "fc2": "head"}


class Core(nn.Module):
    """Our two layers under names that their program knows."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        copies = Classifier(recorded)
        self.fc1, self.fc2 = copies.body[0], copies.head


def modules_go_nowhere() -> None:
    """Module.send and Module.get, which PySyft adds, leave a model where it is."""
    nn.Module.send = lambda self, worker: self
    nn.Module.get = lambda self: self


def ours(recorded: Recorded) -> list[Tree]:
    """The cores on the server and every client's p."""
    rounds = []
    for r in recorded.trained:
        cores = {k: v for k, v in r.server["apple"].items() if k != "sizes"}
        tree = under("cores", cores)
        for cid, state in r.kept.items():
            tree[f"client {cid}/p"] = state["apple"]["p"]
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their round, on a client model of theirs with our two layers."""
    import train_APPLE
    from utils import models

    class ClientModel(models.ClientNet):
        """Their mixture of layers (`superBlock`) in a network of two."""

        def __init__(self, count: int, p: list[float]) -> None:
            nn.Module.__init__(self)
            self.in_channels = self.num_classes = None
            self.conv1s, self.conv2s = nn.ModuleList(), nn.ModuleList()
            self.fc1s = nn.ModuleList([nn.Linear(6, 5) for _ in range(count)])
            self.fc2s = nn.ModuleList([nn.Linear(5, 4) for _ in range(count)])
            self.ps = nn.Parameter(torch.tensor(p))

        def forward(self, x: Tensor) -> Tensor:
            hidden = nn.functional.leaky_relu(self.superBlock(x, self.fc1s))
            logits: Tensor = self.superBlock(hidden, self.fc2s)
            return logits

    members = recorded.parity.data
    sizes = [len(m.train) for m in members]
    of_clients = [Batches(m.train) for m in members]
    args = Namespace(num_local_epochs=2, lr_net=0.1, lr_coef=0.02, decay=0.9, mu=0.3)
    args.num_rounds, args.reg_last_round_over_total_round = 20, 0.1  # the penalty ends at round 2
    args.scheduler, args.limit_downloaded_models, args.log_step = "exponential", 100, 100
    pss = train_APPLE.init_pss(sizes)
    cores: Any = [Core(recorded) for _ in members]
    clients: Any = [ClientModel(len(members), p) for p in pss]
    seen = []
    with (
        mock.patch.object(models, "Net", side_effect=lambda **_: Core(recorded)),
        mock.patch.object(train_APPLE.optim, "SGD", without_momentum_of_p),
    ):
        for t, r in enumerate(recorded.trained):
            for cid in r.cohort:
                of_clients[cid].queue = r.epochs(cid)
            cores, pss, clients = train_APPLE.train_one_round(
                args,
                cores,
                clients,
                pss,
                sizes,
                np.eye(len(members)) == 1,
                t,
                nn.CrossEntropyLoss(),
                "cpu",
                None,
                [(None, loader) for loader in of_clients],
            )
            seen.append(named(cores, pss))
    return seen


def without_momentum_of_p(groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """Their optimiser; its last group is p."""
    groups[-1]["momentum"] = 0.0
    return SGD(groups, **options)


SGD = torch.optim.SGD


def named(cores: list[nn.Module], pss: list[list[float]]) -> Tree:
    """Their tensors under our keys."""
    tree: Tree = {}
    for k in cores[0].state_dict():
        layer, leaf = k.split(".")
        stacked = torch.stack([core.state_dict()[k] for core in cores])
        tree[f"cores/{OUR_KEYS[layer]}.{leaf}"] = stacked
    return tree | {f"client {cid}/p": torch.tensor(p) for cid, p in enumerate(pss)}


PARITY = Parity(
    repository="ljaiverson/pFL-APPLE",
    commit="8078196731b5493ab408fff4fe80f058e2e538f4",
    method=METHOD.format("mu=0.6, fading=exponential"),
    wrong=(
        METHOD.format("mu=0.3, fading=exponential"),
        METHOD.format("mu=0.6, fading=cosine"),
        METHOD.format("mu=0.6, fading=exponential, weighting=uniform"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    patches=(
        absent("syft", "matplotlib", "matplotlib.pyplot", "torchvision", "torchvision.datasets"),
        modules_go_nowhere,
    ),
    deviations=(
        Deviation(
            what="factor of the penalty",
            paper="lam(r) mu / 2 |p - p_0|^2",
            code="without the half",
            flag="twice their mu",
        ),
        Deviation(
            what="how the penalty fades",
            paper="by a cosine",
            code="exponentially by default",
            flag="fading=exponential",
        ),
        Deviation(
            what="momentum of p",
            paper="none",
            code="0.9",
            flag="the program is driven with 0",
        ),
        Deviation(
            what="where cores begin",
            paper="open",
            code="each at a random model of its own",
            flag="the program is given one model for all",
        ),
    ),
)
