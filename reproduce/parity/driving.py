"""Driving a program that is written as a script, or that imports what is not installed."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn

from fedloom.core.net import METHOD, Net
from fedloom.core.rng import rng_scope
from fedloom.core.tree import Tree
from reproduce.parity.harness import Batches, Recorded, federation, module_of, under

SKEWED = federation((14, 11, 17), held=[(0, 1, 2), (1, 2, 3), (0, 1, 2, 3)])
"""Three clients, two of which lack a class; their last batches of five rows are incomplete."""
ONE_ABSENT = (None, None, None, (0, 2))
"""Three rounds of all clients, and one without the second."""


class Idle:
    """An object of a class that is not there: it takes everything and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Absent(ModuleType):
    """A package that is imported and not used: names in it are mocks, capitalised ones classes."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return type(name, (Idle,), {})
        return mock.MagicMock(name=f"{self.__name__}.{name}")


def absent(*names: str) -> Callable[[], None]:
    """A patch that stands in for packages which are imported and not used."""

    def packages_not_used() -> None:
        for name in names:
            sys.modules[name] = Absent(name)

    packages_not_used.__doc__ = f"Empty modules for {', '.join(names)}, imported and not used."
    return packages_not_used


def without_a_gpu() -> None:
    """Tensor.cuda and Module.cuda leave things where they are."""

    def stay(self: Any, *_: object, **__: object) -> Any:
        return self

    torch.Tensor.cuda = stay
    nn.Module.cuda = stay


class AllRoundsSeen(Exception):
    """Raised inside an author's script when what follows is not compared."""


def run_script(name: str, options: Mapping[str, object]) -> None:
    """Run an author's script NAME.py in an empty folder, to its end or to `AllRoundsSeen`.

    A module with the script's path stays behind, so that the script is listed among the files that
    were used.
    """
    path = next(script for entry in sys.path if (script := Path(entry, f"{name}.py")).exists())
    listed = ModuleType(f"script_{name}")
    listed.__file__ = str(path)
    sys.modules[listed.__name__] = listed
    words = [word for k, v in options.items() for word in (f"--{k}", str(v))]
    with (
        _in_empty_folder(),
        mock.patch.object(sys, "argv", [str(path), *words]),
        suppress(AllRoundsSeen),
    ):
        runpy.run_path(str(path), run_name="__main__")


@contextmanager
def _in_empty_folder() -> Iterator[None]:
    """Scripts write logs and results below the working directory."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("save", "logs", "models", "results"):
            Path(folder, name).mkdir()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


class Classifier(nn.Module):
    """Copies of body and head with the net's keys, as the module that a program trains."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__()
        copies = module_of(recorded.program.nets[0], "body", "head")
        self.body, self.head = copies.body, copies.head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def without_bias(width: int = 6, hidden: int = 5, classes: int = 4) -> Net:
    """A seeded net without biases, for programs that decay weights and spare biases."""
    with rng_scope("parity", "net without bias"):
        body = nn.Sequential(nn.Linear(width, hidden, bias=False), nn.LeakyReLU())
        return Net((width,), body=body, head=nn.Linear(hidden, classes, bias=False))


def loaders(recorded: Recorded) -> list[Batches]:
    """Every client's loader with the batches of all recorded rounds in its queue."""
    of_clients = [Batches(m.train) for m in recorded.parity.data]
    for r in recorded.rounds:
        for cid in r.cohort:
            of_clients[cid].queue += r.epochs(cid)
    return of_clients


def all_used(of_clients: Sequence[Batches]) -> None:
    """Every recorded batch must have been used, else both sides trained on different rows."""
    left = {cid: len(loader.queue) for cid, loader in enumerate(of_clients) if loader.queue}
    if left:
        raise AssertionError(f"the program left epochs unused, by client: {left}")


class Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The training rows of all clients in one data set; a client is told by its first index."""

    def __init__(self, recorded: Recorded) -> None:
        members = recorded.parity.data
        self.x = torch.cat([m.train.x(torch.arange(len(m.train))) for m in members])
        self.y = torch.cat([m.train.y for m in members])
        self.of_client: list[int] = [
            cid for cid, m in enumerate(members) for _ in range(len(m.train))
        ]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]

    def __len__(self) -> int:
        return len(self.y)


def models(recorded: Recorded) -> list[Tree]:
    """Of every round the server's model and what every client keeps of its own."""
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server[METHOD])
        for cid, state in r.kept.items():
            tree |= under(f"client {cid}", state.get(METHOD, {}))
        rounds.append(tree)
    return rounds


def models_and_tuned(recorded: Recorded) -> list[Tree]:
    """The models of every round and, where the method fine-tunes, the tuned one of every client."""
    if recorded.adapted is None:
        return models(recorded)
    tuned: Tree = {}
    for cid, state in recorded.adapted.kept.items():
        tuned |= under(f"client {cid}", state["final/model"])
    return [*models(recorded), tuned]


def uploads(recorded: Recorded) -> list[Tree]:
    """Of every round the server's model and what the participants sent."""
    rounds = []
    for r in recorded.rounds:
        tree = under("server", r.server[METHOD])
        for cid in r.cohort:
            tree |= under(f"client {cid}", r.up[cid].state[METHOD])
        rounds.append(tree)
    return rounds


def matching(theirs: Sequence[Tree], ours: Sequence[Tree]) -> list[Tree]:
    """Their tensors that exist on our side too: a program may average what it sends to nobody."""
    return [
        {k: other[k] for k in mine if k in other} for mine, other in zip(ours, theirs, strict=True)
    ]
