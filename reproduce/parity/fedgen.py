"""FedGen against zhuangdizhu/FedGen: the server's model, every upload, and the generator."""

from __future__ import annotations

import copy
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import SKEWED, Classifier, absent, uploads
from reproduce.parity.harness import (
    Deviation,
    Parity,
    Played,
    Recorded,
    play,
    two_layers,
    under,
)

NOISE, HIDDEN, STEPS, BATCH = 3, 6, 10, 5
METHOD = (
    "fedavg(lr=0.1, epochs=1, batch_size=5) + fedgen({}, lr=0.01, steps=10, batch=5,"
    " server_batch=5, noise=3, hidden=6, eta=1.0, decay=0.98)"
)


class Model(nn.Module):
    """Their dictionary of outputs; `start_layer_idx` -1 begins at the features."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.net = Classifier(recorded)

    def forward(
        self, x: Tensor, start_layer_idx: int = 0, logit: bool = False
    ) -> dict[str, Tensor]:
        logits = self.net.head(x) if start_layer_idx else self.net(x)
        return {"output": logits.log_softmax(1), "logit": logits}


class Generator(nn.Module):
    """Our generator in the place of theirs, with the noise that ours drew."""

    latent_layer_idx, embedding = -1, False

    def __init__(self, recorded: Recorded, noise: Iterator[Tensor]) -> None:
        super().__init__()
        from FLAlgorithms.trainmodel.generator import DiversityLoss

        self.made = copy.deepcopy(recorded.program.nets[0].tools["fedgen"])
        self.noise = noise
        self.diversity_loss = DiversityLoss(metric="l1")

    def forward(self, labels: Tensor, **_: object) -> dict[str, Tensor]:
        eps = next(self.noise)
        z = self.made(nn.functional.one_hot(labels, 4).float(), eps)
        return {"output": z, "eps": eps}

    def crossentropy_loss(self, log_p: Tensor, y: Tensor) -> Tensor:
        """A column, so that it meets the column of weights row by row."""
        return nn.functional.nll_loss(log_p, y, reduction="none")[:, None]


def ours(recorded: Recorded) -> list[Tree]:
    """The models and the generator's weights."""
    rounds = uploads(recorded)
    for tree, r in zip(rounds, recorded.rounds, strict=True):
        generator = {k: v for k, v in r.server["fedgen"].items() if k != "counts"}
        tree.update(under("generator", generator))
    return rounds


def drawn(recorded: Recorded) -> tuple[list[Tensor], list[Tensor]]:
    """Labels and noise of fedloom's rounds in the order in which their program asks for them.

    The rounds are played again and listened to. For every step of a client ours draws labels, noise
    for them, and noise for the batch's labels; theirs takes the last first.
    """
    heard: list[Tensor] = []

    def listening(draw: Any) -> Any:
        def listened(*args: Any, **options: Any) -> Tensor:
            heard.append(draw(*args, **options))
            return heard[-1]

        return listened

    with (
        mock.patch.object(torch, "multinomial", listening(torch.multinomial)),
        mock.patch.object(torch, "randn", listening(torch.randn)),
    ):
        play(recorded.parity)
    labels, noise = [], []
    for t, r in enumerate(recorded.rounds):
        for _ in range(steps_of(r) if t else 0):  # clients use the generator from round 2 on
            y, of_labels, of_batch = (heard.pop(0) for _ in range(3))
            labels.append(y)
            noise += [of_batch, of_labels]
        for _ in range(STEPS):
            labels.append(heard.pop(0))
            noise.append(heard.pop(0))
    return labels, noise


def steps_of(r: Played) -> int:
    """Steps of all clients in a round."""
    return sum(len(epoch) for cid in r.cohort for epoch in r.epochs(cid))


def theirs(recorded: Recorded) -> list[Tree]:
    """Their server's own loop, with its evaluations and files left out."""
    from FLAlgorithms.servers import serverpFedGen
    from utils.model_config import RUNCONFIGS

    labels, noise = drawn(recorded)
    members = recorded.parity.data
    RUNCONFIGS["mnist"] |= {"unique_labels": 4, "generative_alpha": 2.0, "generative_beta": 3.0}
    RUNCONFIGS["mnist"] |= {"ensemble_epochs": STEPS, "ensemble_eta": 1.0}
    generator = Generator(recorded, iter(noise))

    def pairs(rows: Any) -> list[tuple[Tensor, Tensor]]:
        return [(rows.inputs[i], rows.y[i]) for i in range(len(rows))]

    def read_user_data(index: int, *_: object, count_labels: bool = False, **__: object) -> Any:
        read = (str(index), pairs(members[index].train), pairs(members[index].test))
        return (*read, None) if count_labels else read

    args = Namespace(dataset="mnist", algorithm="FedGen", train=True, embedding=0, lamda=0, beta=0)
    args.num_glob_iters, args.num_users = len(recorded.rounds), len(members)
    args.local_epochs, args.K, args.learning_rate = 1, 0, 0.1
    args.batch_size = args.gen_batch_size = BATCH
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(serverpFedGen, "read_data", return_value=[range(len(members))]),
        mock.patch.object(serverpFedGen, "read_user_data", read_user_data),
        mock.patch.object(serverpFedGen, "aggregate_user_data", return_value=(None, None, [])),
        mock.patch.object(serverpFedGen, "create_generative_model", return_value=generator),
        mock.patch("numpy.random.choice", side_effect=[y.numpy() for y in labels]),
    ):
        args.result_path = folder
        server = serverpFedGen.FedGen(args, (Model(recorded), "none"), 0)
        return run(server, args, recorded)


def run(server: Any, args: Namespace, recorded: Recorded) -> list[Tree]:
    """Their rounds; batches are given and looked at where the server begins and ends one."""
    seen: list[Tree] = []
    generate, aggregate = server.train_generator, server.aggregate_parameters

    def select(*_: object, **__: object) -> tuple[list[Any], list[int]]:
        for cid, user in enumerate(server.users):
            (epoch,) = recorded.rounds[len(seen)].epochs(cid)
            rows = recorded.parity.data[cid].train
            user.iter_trainloader = iter([(rows.inputs[b], rows.y[b]) for b in epoch])
            user.K = len(epoch)  # their number of local steps
            user.label_counts = {}
        return server.users, list(range(len(server.users)))

    def train_generator(*args_: Any, **options: Any) -> None:
        """The optimiser begins anew, without weight decay and with a constant rate."""
        generator = server.generative_model
        server.generative_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
        generate(*args_, **options)

    def aggregating() -> None:
        tree: Tree = {}
        for cid, user in enumerate(server.users):
            tree |= under(f"client {cid}", user.model.net.state_dict())
        aggregate()
        tree |= under("server", server.model.net.state_dict())
        tree |= under("generator", server.generative_model.made.state_dict())
        seen.append(tree)

    server.select_users, server.train_generator = select, train_generator
    server.aggregate_parameters = aggregating
    server.generative_lr_scheduler = mock.MagicMock()
    for name in ("evaluate", "save_results", "save_model"):
        setattr(server, name, lambda *_: None)
    for user in server.users:
        user.lr_scheduler = mock.MagicMock()
        user.clean_up_counts = counts_from_zero(user)
    server.train(args)
    return seen


def counts_from_zero(user: Any) -> Any:
    """Class counts of the round begin at 0, where theirs begin at 1."""

    def clean_up() -> None:
        user.label_counts = dict.fromkeys(range(4), 0)

    return clean_up


PARITY = Parity(
    repository="zhuangdizhu/FedGen",
    commit="dd5807c5625404e99035d97e2ef8c712c2e007a6",
    method=METHOD.format("alpha=2.0, beta=3.0, ensemble=losses"),
    wrong=(
        METHOD.format("alpha=2.0, beta=3.0, ensemble=logits"),
        METHOD.format("alpha=2.0, beta=2.0, ensemble=losses"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=ours,
    theirs=theirs,
    patches=(absent("h5py", "torchvision", "torchvision.transforms", "torchvision.utils"),),
    deviations=(
        Deviation(
            what="how heads teach the generator",
            paper="by the cross-entropy of their mean logits",
            code="by the weighted mean of their cross-entropies",
            flag="ensemble=losses",
        ),
        Deviation(
            what="weights of the heads' losses",
            paper="every sample's label has its own",
            code="a column of weights times a row of losses: every loss gets the mean weight of the"
            " batch",
            flag="the program's losses are made a column too",
        ),
        Deviation(
            what="labels and noise",
            paper="labels by their frequency, noise from a normal distribution",
            code="labels uniformly from those that are held, noise uniformly between 0 and 1",
            flag="the program is given what ours draws",
        ),
        Deviation(
            what="the generator",
            paper="open",
            code="with BatchNorm",
            flag="the program is given our generator, which has none",
        ),
        Deviation(
            what="the generator's optimiser",
            paper="open",
            code="Adam that is kept over rounds, with weight decay and a rate that falls by 0.98",
            flag="the program begins it anew in every round, without decay, at a constant rate",
        ),
        Deviation(
            what="class counts",
            paper="of the client's rows",
            code="of the batches of the round, and one more for every class",
            flag="one pass over the rows in a round, counted from 0",
        ),
        Deviation(
            what="the clients' rate",
            paper="constant",
            code="falls by 0.99 in every round from the third on",
            flag="the program's schedule is switched off",
        ),
    ),
)
