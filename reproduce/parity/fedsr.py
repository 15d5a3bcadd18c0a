"""FedSR against atuannguyen/FedSR: the server's model, and every client's r(z|y) and scale."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.tree import Tree
from reproduce.parity.driving import SKEWED, models
from reproduce.parity.harness import (
    Batches,
    Deviation,
    Parity,
    Recorded,
    empty_module,
    module_of,
    play,
    two_layers,
    under,
)

DIM = 3
METHOD = (
    'fedsr(l2=0.05, cmi=0.1, dim=3, {}, shared="* !prior.*", lr=0.05, epochs=2,'
    " batch_size=5, momentum=0.9, weight_decay=0.001, keep_state=true)"
)
OUR_KEYS = {"net.fc": "gauss.fc", "net.body": "body", "cls": "head"}
"""Where their modules stand in our net."""
PRIOR = {"prior.mean": "r_mu", "prior.rho": "r_sigma", "prior.scale": "C"}


class BackBone(nn.Module):
    """Stands for their ResNet, whose last layer they replace."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        self.body = module_of(recorded.program.nets[0], "body").body
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.body(x))
        return z


def noise_of(recorded: Recorded) -> list[Tensor]:
    """Every draw of fedloom's rounds in order: they are played again and listened to."""
    drawn: list[Tensor] = []
    draw = torch.randn

    def listening(*shape: int, **options: Any) -> Tensor:
        noise: Tensor = draw(*shape, **options)
        drawn.append(noise)
        return noise

    with mock.patch("fedloom.models.gaussian.torch.randn", listening):
        play(recorded.parity)
    return drawn


def theirs(recorded: Recorded) -> list[Tree]:
    """Their model of every client, its training and its averaging."""
    empty_module("torchvision")
    empty_module("torchvision.models", resnet18=lambda pretrained: BackBone(recorded))
    sys.modules["torchvision"].models = sys.modules["torchvision.models"]
    from methods import base
    from methods.FedSR import Model

    members = recorded.parity.data
    args = Namespace(z_dim=DIM, num_classes=members[0].classes, back_bone="resnet18", optim="SGD")
    args.lr, args.weight_decay, args.device, args.num_samples = 0.05, 0.001, "cpu", 1
    args.L2R_coeff, args.CMI_coeff = 0.05, 0.1
    clients = [Model(args) for _ in members]
    for client in clients:
        begin(client, recorded.initial)
    of_clients = [Batches(m.train) for m in members]
    noise = iter(noise_of(recorded))

    def standard_normal(shape: torch.Size, **_: object) -> Tensor:
        return next(noise).reshape(shape)

    seen = []
    with mock.patch("torch.distributions.normal._standard_normal", standard_normal):
        for r in recorded.rounds:
            for cid, client in enumerate(clients):
                steps = [batch for epoch in r.epochs(cid) for batch in epoch]
                of_clients[cid].queue = [[batch] for batch in steps]  # they take one of a pass
                client.train_client(of_clients[cid], steps=len(steps))
            communicate(base, clients)
            seen.append(named(clients))
    return seen


def begin(client: Any, initial: Tree) -> None:
    """Their modules with our initial values; r begins at the same constants."""
    with torch.no_grad():
        for theirs_, mine in OUR_KEYS.items():
            for k, v in client.get_submodule(theirs_).state_dict().items():
                v.copy_(initial[f"{mine}.{k}"])


def communicate(base: Any, clients: list[Any]) -> None:
    """Their `communicate` at every client; gathering gives all clients' tensors and, for the
    master, who has no rows, nothing."""
    states = [{k: v.clone() for k, v in c.model.state_dict().items()} for c in clients]

    def gathered(keys: Iterator[str]) -> Any:
        def all_gather(tensor: Tensor, stack: bool) -> list[Tensor | None]:
            key = next(keys)
            return [*(state[key] for state in states), None]

        return all_gather

    for client in clients:
        with mock.patch.object(base, "all_gather", gathered(iter(states[0]))):
            client.communicate(master=len(clients))


def named(clients: list[Any]) -> Tree:
    """Their tensors under our keys."""
    tree: Tree = {}
    for theirs_, mine in OUR_KEYS.items():
        state = clients[0].get_submodule(theirs_).state_dict()
        tree |= under("server", {f"{mine}.{k}": v for k, v in state.items()})
    for cid, client in enumerate(clients):
        prior = {mine: getattr(client, name).detach() for mine, name in PRIOR.items()}
        tree |= under(f"client {cid}", prior)
    return tree


PARITY = Parity(
    repository="atuannguyen/FedSR",
    commit="ba8d894a90fab9da3d62cce570bc8fe17a312a2d",
    method=METHOD.format("norm=plain, scaled=true, weighting=uniform"),
    wrong=(
        METHOD.format("norm=squared, scaled=true, weighting=uniform"),
        METHOD.format("norm=plain, scaled=true, weighting=samples"),
    ),
    data=SKEWED,
    net=two_layers,
    ours=models,
    theirs=theirs,
    folder="src",
    deviations=(
        Deviation(
            what="norm of the representation",
            paper="squared",
            code="plain",
            flag="norm=plain",
        ),
        Deviation(
            what="scale of p(z|x) in the divergence",
            paper="none",
            code="a trained number",
            flag="scaled=true",
        ),
        Deviation(
            what="r(z|y)",
            paper="averaged with the model",
            code="stays with the client",
            flag='shared="* !prior.*"',
        ),
        Deviation(
            what="weights of the clients",
            paper="open",
            code="the same for every client",
            flag="weighting=uniform",
        ),
        Deviation(
            what="momentum over rounds",
            paper="open",
            code="every client keeps its optimiser",
            flag="keep_state=true",
        ),
    ),
)
