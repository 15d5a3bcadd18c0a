"""FedProto against yuetan031/FedProto: every client's model, and the prototypes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, Rows, absent, all_used, loaders
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    federation,
    two_layers,
    under,
)

METHOD = "fedproto({}, lr=0.1, epochs=2, batch_size=5, momentum=0.5, drop_last=true)"


class Model(Classifier):
    """Logarithms of probabilities, and features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x)
        return self.head(z).log_softmax(1), z


def ours(recorded: Recorded) -> list[Tree]:
    """Models and prototypes; all four classes are known after the first round."""
    rounds = []
    for r in recorded.rounds:
        tree = {"server/prototypes": r.server["fedproto"]["prototypes"]}
        for cid, state in r.kept.items():
            tree |= under(f"client {cid}", state["model"])
        rounds.append(tree)
    return rounds


def theirs(recorded: Recorded) -> list[Tree]:
    """Their loop over rounds; it is looked at where the prototypes are averaged."""
    import federated_main
    import update

    rows, of_clients = Rows(recorded), loaders(recorded)
    nets: list[nn.Module] = [Model(recorded) for _ in of_clients]
    seen: list[Tree] = []
    aggregate = federated_main.proto_aggregation

    def loader(dataset: Any, **_: object) -> Batches:
        return of_clients[rows.of_client[dataset.idxs[0]]]

    def aggregating(local: dict[int, Any]) -> dict[int, list[Tensor]]:
        prototypes: dict[int, list[Tensor]] = aggregate(local)
        tree = {"server/prototypes": torch.stack([prototypes[k][0] for k in sorted(prototypes)])}
        for cid, net in enumerate(nets):
            tree |= under(f"client {cid}", net.state_dict())
        seen.append(tree)
        return prototypes

    args = Namespace(rounds=len(recorded.rounds), train_ep=2, local_bs=5, optimizer="sgd", lr=0.1)
    args.num_users, args.num_classes, args.ld = len(nets), 4, 0.7
    args.device, args.dataset, args.verbose = "cpu", "none", False
    args.ways = args.shots = args.stdev = 0
    users = {
        cid: [i for i, owner in enumerate(rows.of_client) if owner == cid]
        for cid in range(len(nets))
    }
    with (
        mock.patch.object(update, "DataLoader", loader),
        mock.patch.object(update.LocalUpdate, "update_weights_het", after_training(update)),
        mock.patch.object(federated_main, "proto_aggregation", aggregating),
        mock.patch.object(federated_main, "test_inference_new_het_lt", return_value=([0],) * 3),
    ):
        federated_main.FedProto_taskheter(args, rows, rows, users, users, nets, None)
    all_used(of_clients)
    return seen


def after_training(update: Any) -> Any:
    """Their local training, whose features by class are those of the trained model."""
    train = update.LocalUpdate.update_weights_het

    def trained(self: Any, *args: Any, model: nn.Module, **more: Any) -> tuple[Any, ...]:
        weights, loss, accuracy, by_class = train(self, *args, model=model, **more)
        with torch.no_grad():
            ((x, y),) = Batches(self.trainloader.rows)  # all rows in order
            _, z = model(x)
        return weights, loss, accuracy, {k: list(z[y == k]) for k in by_class}

    return trained


PARITY = Parity(
    repository="yuetan031/FedProto",
    commit="97e42e2741e1ae2e2fce2465e80f38f6997f8836",
    method=METHOD.format("lam=0.7"),
    wrong=(METHOD.format("lam=0.5"), METHOD.format("lam=0.7, clip=0.5")),
    # Every client has four rows of each of its classes.
    data=federation((12, 12, 16), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]),
    net=two_layers,
    ours=ours,
    theirs=theirs,
    folder="exps",
    patches=(absent("tensorboardX", "torchvision", "torchvision.models"),),
    deviations=(
        Deviation(
            what="what is pulled towards a prototype",
            paper="the client's class means",
            code="the features of every sample",
            flag="as in the code; the other is not offered",
        ),
        Deviation(
            what="when prototypes are measured",
            paper="with the trained model",
            code="during the last epoch, each batch before its step",
            flag="the program is given the features of its trained model",
        ),
        Deviation(
            what="mean of the prototypes over clients",
            paper="by rows of the class",
            code="the same weight for every client that holds the class",
            flag="clients with equally many rows of each class, where both are the same",
        ),
    ),
)
