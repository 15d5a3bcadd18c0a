"""FedBABU against jhoon-oh/FedBABU: the body, and the head that nobody trains."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import (
    SKEWED,
    AllRoundsSeen,
    Classifier,
    Rows,
    all_used,
    loaders,
    models,
    run_script,
)
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    empty_module,
    two_layers,
    under,
)

METHOD = "fedbabu({}, lr=0.1, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.001)"


class Model(nn.Module):
    """Their head is what has `linear` in its name."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        copies = Classifier(recorded)
        self.body, self.linear = copies.body, copies.head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.body(x))
        return logits


def named(net: nn.Module) -> Tree:
    """Its tensors under our keys."""
    return {k.replace("linear", "head"): v for k, v in net.state_dict().items()}


def theirs(recorded: Recorded) -> list[Tree]:
    """Their main script with body update and body aggregation."""
    rows, of_clients = Rows(recorded), loaders(recorded)
    seen: list[Tree] = []
    cohorts = [r.cohort for r in recorded.rounds]

    def loader(dataset: Any, batch_size: int, shuffle: bool) -> Batches:
        if len(seen) == len(cohorts):
            raise AllRoundsSeen
        return of_clients[rows.of_client[dataset.idxs[0]]]

    def test(nets: list[nn.Module], *_: object, **__: object) -> tuple[float, float]:
        tree = under("server", named(nets[0]), [k for k in named(nets[0]) if "body" in k])
        for cid, net in enumerate(nets):
            tree |= under(f"client {cid}", named(net), ["head.weight", "head.bias"])
        seen.append(tree)
        return 0.0, 0.0

    users = {
        cid: [i for i, owner in enumerate(rows.of_client) if owner == cid]
        for cid in range(len(of_clients))
    }
    empty_module(
        "utils.train_utils",
        get_data=lambda _: (rows, rows, users, users),
        get_model=lambda _: Model(recorded),
    )
    empty_module("models.test", test_img_local_all=test, test_img=None, test_img_local=None)
    from models import Update

    Update.DataLoader = loader
    options = {
        "local_upt_part": "body",
        "aggr_part": "body",
        "num_users": len(of_clients),
        "frac": 1.0,
        "epochs": 4 * len(cohorts),  # the rate falls at a half of the run, behind what is compared
        "local_ep": 2,
        "lr": 0.1,
        "momentum": 0.9,
        "wd": 0.001,
        "gpu": -1,
    }
    with mock.patch("numpy.random.choice", side_effect=[*cohorts, cohorts[0]]):
        run_script("main_fed", options)
    all_used(of_clients)
    return seen


PARITY = Parity(
    repository="jhoon-oh/FedBABU",
    commit="e34c15b4288224f0af1bc13670bc0cdc373c9576",
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.5")),
    data=SKEWED,
    net=two_layers,
    ours=models,
    theirs=theirs,
    deviations=(
        Deviation(
            what="weights of the clients",
            paper="by samples (Algorithm 1)",
            code="the same weight for every participant",
            flag="weighting=uniform",
        ),
    ),
)
