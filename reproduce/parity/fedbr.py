"""FedBR on FedAvg against LINs-lab/FedBR: featurizer, classifier and projection."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Played,
    Recorded,
    empty_module,
    federation,
    module_of,
    two_layers,
    under,
)

CLASSES, WIDTH, RATE = 4, 5, 0.05
METHOD = "fedavg(weighting=uniform, lr=0.05, steps=4, batch_size=6, replacement=true) + fedbr({})"
PUBLISHED = "multiply=true, projection=published, refresh=false"
THEIR_NAMES = {
    "featurizer.": "body.",
    "classifier.": "head.",
    "discriminator.input.": "fedbr.0.",
    "discriminator.hiddens.0.": "fedbr.2.",
    "discriminator.output.": "fedbr.4.",
}


def empty_torchvision() -> None:
    """torchvision, of which they take networks and data sets that are not used here, is empty."""
    empty_module("torchvision", transforms=None)
    empty_module("torchvision.models")


def empty_cv2() -> None:
    """cv2, from which one name is imported and not used, is empty."""
    empty_module("cv2", transform=None)


def empty_transformers() -> None:
    """fedbr.src, transformers whose package file the repository lacks, is empty."""
    empty_module("fedbr.src", cct_7_3x1_32=None, cct_7_3x1_32_c100=None)


def ours(recorded: Recorded) -> list[Tree]:
    """The server's model, projection included."""
    return [under("server", r.server["model"]) for r in recorded.trained]


def theirs(recorded: Recorded, mixture: bool = False) -> list[Tree]:
    """Their local updates and their server's; the loop around them is a script of theirs and is
    written here."""
    from fedbr import networks
    from fedbr.algorithms import FedBR
    from fedbr.algorithms_fed import FedAvg

    net = recorded.program.nets[0]
    body = module_of(net, "body").body
    body.n_outputs = body.n_outputs_feature = WIDTH
    settings = {"lr": RATE, "weight_decay": 0.0, "nonlinear_classifier": False}
    settings |= {"use_Mixture": mixture, "use_Mixup": False}
    with mock.patch.object(networks, "Featurizer", return_value=body):
        model = FedBR(net.shape, CLASSES, len(recorded.parity.data), settings)
    load(model, recorded.initial)
    server = FedAvg(model)
    clients = [FedAvg(copy.deepcopy(model)) for _ in recorded.parity.data]
    trees = []
    for r in recorded.trained:
        images = r.server["fedbr"]["x"]  # the same in all rounds
        for cid in r.cohort:
            with drawing(r, cid, len(images)) if mixture else nullcontext():
                for x, y in batches(recorded, r, cid):
                    clients[cid].update([(x, y)], [image[None] for image in images])
        weights = [1 / len(r.cohort)] * len(r.cohort)
        changes = [clients[cid].gradients for cid in r.cohort]
        server.global_update(changes, weights, {"global_lr": 1.0})
        for client in clients:
            client.copy_from(server)
            client.algorithm.if_updated = True
        trees.append(under("server", named(server.algorithm)))
    return trees


def drawing(r: Played, cid: int, images: int) -> Any:
    """Which image of the batch is mixed with which pseudo-image, as fedloom drew it."""
    gen = r.plan.gen(cid, "fedbr")
    drawn = [
        row
        for epoch in r.epochs(cid)
        for idx in epoch
        for row in torch.randint(len(idx), (images, 1), generator=gen)
    ]
    return mock.patch("torch.randint", side_effect=drawn)


def batches(recorded: Recorded, r: Played, cid: int) -> list[tuple[Tensor, Tensor]]:
    """What fedloom's client trained on in one round."""
    rows = recorded.parity.data[cid].train
    return [(rows.x(idx), rows.y[idx]) for epoch in r.epochs(cid) for idx in epoch]


def load(model: nn.Module, tree: Tree) -> None:
    """Our initial weights under their names."""
    state = model.state_dict()
    for theirs_, ours_ in THEIR_NAMES.items():
        for key in state:
            if key.startswith(theirs_):
                state[key] = tree[key.replace(theirs_, ours_)]
    model.load_state_dict(state)


def named(model: Any) -> Tree:
    """Their weights under our names; their copies of the received model are left out."""
    return {
        key.replace(theirs_, ours_): value
        for theirs_, ours_ in THEIR_NAMES.items()
        for key, value in model.state_dict().items()
        if key.startswith(theirs_)
    }


PARITY = Parity(
    repository="LINs-lab/FedBR",
    commit="6c4c5395c08a73bbb5f453535d3d29581032e471",
    method=METHOD.format(PUBLISHED),
    wrong=(
        METHOD.format(PUBLISHED.replace("multiply=true", "multiply=false")),
        METHOD.format(PUBLISHED + ", lam=0.9"),
        METHOD.format(PUBLISHED + ", mu=0.4"),
        METHOD.format(PUBLISHED + ", max_step=false"),
        METHOD.format(PUBLISHED).replace("uniform", "samples"),
    ),
    data=federation((14, 11, 17), CLASSES, held=[(0, 1, 2), (1, 2, 3), (0, 3)]),
    net=lambda: two_layers(hidden=WIDTH, classes=CLASSES, activation=nn.ReLU),
    ours=ours,
    theirs=theirs,
    cohorts=(None, None, None, (0, 2)),
    patches=(empty_torchvision, empty_cv2, empty_transformers),
    deviations=(
        Deviation(
            what="temperature",
            paper="similarities are divided by tau",
            code="they are multiplied by it",
            flag="multiply=true",
        ),
        Deviation(
            what="size of the projection",
            paper="width 256, output 128",
            code="twice the representation's width, output as wide as the representation",
            flag="projection=published",
        ),
        Deviation(
            what="age of the pseudo-images",
            paper="new ones in every round",
            code="made once before training",
            flag="refresh=false",
        ),
        Deviation(
            what="number of pseudo-images of a client",
            paper="every client makes as many",
            code="each image is of a client drawn at random",
            flag="fedloom's pseudo-images are handed to the program",
        ),
        Deviation(
            what="beginning of the run",
            paper="all clients begin with one model and train all local steps in the first round",
            code="clients begin with unlike models, and the first round has one step",
            flag="the script's loop is not run: clients begin alike and all rounds are as long",
        ),
        Deviation(
            what="the received model's features under pseudo=mixture",
            paper="of the same mixture as the local model's",
            code="of the first step's mixture, at all steps",
            flag="pseudo=rsm is not affected; see fedbr_mixture",
        ),
    ),
)
