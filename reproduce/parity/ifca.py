"""IFCA against jichan3751/ifca: the models of the clusters, and every client's choice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, absent
from reproduce.parity.harness import Deviation, Parity, Recorded, federation, two_layers

CLUSTERS = 2
METHOD = "hypcluster(k=2, {}, lr=0.3, epochs=3, batch_size=100)"


def ours(recorded: Recorded) -> list[Tree]:
    """Every tensor with the clusters in its first dimension, and the choices."""
    rounds = []
    for r in recorded.rounds:
        tree = {f"server/{k}": v.clone() for k, v in r.server["model"].items()}
        choices = [r.up[cid].state["hypcluster"]["choice"] for cid in r.cohort]
        rounds.append({**tree, "server/choices": torch.stack(choices)})
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their experiment on MNIST, whose rows and first models are ours."""
    from train_cluster_mnist import TrainMNISTCluster

    members = recorded.parity.data

    class Experiment(TrainMNISTCluster):
        def load_data(self, client: int, train: bool = True) -> tuple[Tensor, Tensor]:
            rows = members[client].train
            return rows.inputs, rows.y

    experiment: Any = Experiment({"m": len(members), "p": CLUSTERS, "tau": 3, "lr": 0.3})
    experiment.dataset = {"train": {"cluster_assign": [0] * len(members)}}
    experiment.criterion, experiment.lr = nn.CrossEntropyLoss(), None
    experiment.models = first_models(recorded)
    seen = []
    for t in range(len(recorded.rounds)):
        choices = experiment.test(train=True)["cluster_assign"]
        experiment.train(choices, lr=experiment.lr_schedule(t))
        states = [model.state_dict() for model in experiment.models]
        tree = {f"server/{k}": torch.stack([state[k] for state in states]) for k in states[0]}
        seen.append({**tree, "server/choices": torch.tensor([int(c) for c in choices])})
    return seen


def first_models(recorded: Recorded) -> list[nn.Module]:
    """What our clients received in the first round."""
    received = recorded.rounds[0].down[0].state["model"]
    models = []
    for j in range(CLUSTERS):
        model = Classifier(recorded)
        model.load_state_dict({k: v[j] for k, v in received.items()})
        models.append(model)
    return models


PARITY = Parity(
    repository="jichan3751/ifca",
    commit="61e44b8977a53c25368e8120aac6a505496ebbdf",
    method=METHOD.format("weighting=uniform"),
    wrong=(METHOD.format("weighting=samples"), METHOD.format("weighting=uniform, clip=0.2")),
    data=federation((14, 11, 17, 9), held=[(0, 1), (1, 2, 3), (0, 1, 2), (2, 3)]),
    net=two_layers,
    ours=ours,
    theirs=theirs,
    folder="mnist",
    patches=(absent("torchvision", "torchvision.datasets"),),
    deviations=(
        Deviation(
            what="local steps",
            paper="option II: several epochs of SGD; option I: one averaged gradient",
            code="several gradient steps on all rows, models averaged",
            flag="a batch size beyond every client's rows",
        ),
    ),
)
