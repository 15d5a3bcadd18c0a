"""The program of pFedMe's authors, CharlieDinh/pFedMe, which also runs Per-FedAvg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import Classifier, absent
from reproduce.parity.harness import Recorded

REPOSITORY = "CharlieDinh/pFedMe"
COMMIT = "caf24b1f954d4381bd9b4d104ee7eff389e1489b"
PACKAGES = absent("h5py", "torchvision", "torchvision.transforms")
Pairs = list[tuple[Tensor, Tensor]]


def give_rows(module: Any, recorded: Recorded) -> None:
    """Their server reads our rows where it would read its files."""
    members = recorded.parity.data

    def pairs(rows: Any) -> Pairs:
        return [(rows.inputs[i], rows.y[i]) for i in range(len(rows))]

    def read_user_data(index: int, *_: object) -> tuple[str, Pairs, Pairs]:
        return str(index), pairs(members[index].train), pairs(members[index].test)

    module.read_data = lambda _: [range(len(members))]
    module.read_user_data = read_user_data


def logarithms(recorded: Recorded) -> tuple[nn.Module, str]:
    """Their pair of model and name; their loss reads logarithms of probabilities."""
    return nn.Sequential(Classifier(recorded), nn.LogSoftmax(-1)), "DNN"


def batches(user: Any, order: Sequence[Tensor], rows: Any) -> None:
    """The next batches that a user takes, one step each."""

    def given() -> Iterator[tuple[Tensor, Tensor]]:
        for idx in order:
            yield rows.inputs[idx], rows.y[idx]

    user.iter_trainloader = given()


def tree(params: Sequence[Tensor], recorded: Recorded) -> Tree:
    """Their parameters, which have an order and no names, under our keys."""
    keys = [k for k, _ in Classifier(recorded).named_parameters()]
    return {k: p.detach().clone() for k, p in zip(keys, params, strict=True)}
