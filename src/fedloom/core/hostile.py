"""Clients that work against a run, to see what it bears: `hostile="sign_flip(share=0.2)"`.

They are drawn by the run's seed, do as they are told by the method, and then send something else;
or train on wrong labels. Scores are of honest clients only. Only simulations know this key: sites
of a deployment refuse it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import torch
from torch import Generator, Tensor

from fedloom.core.data import ClientData, Split
from fedloom.core.message import Plan
from fedloom.core.rng import generator
from fedloom.core.tree import State, Tree, starting_point
from fedloom.errors import BadInput
from fedloom.expression import parse_one, written
from fedloom.registry import Registry

hostilities = Registry("hostile behaviour")
"""What hostile clients do, by name."""


@dataclass(frozen=True)
class Hostile:
    """Some of the clients, and what they do. By default nothing."""

    name: ClassVar[str]
    share: float = 0.2
    """Of the clients, rounded down."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise BadInput(
                f"{self.name}: share is a share of clients, 0 or more and below 1, not {self.share}"
            )

    def members(self, clients: int, seed: int) -> frozenset[int]:
        """Who they are."""
        order = torch.randperm(clients, generator=generator(seed, "hostile clients"))
        return frozenset(order[: int(self.share * clients)].tolist())

    def data(self, data: ClientData) -> ClientData:
        """What they train on."""
        return data

    def upload(self, up: State, received: State, plan: Plan) -> State:
        """What they send. `up` is what the method would, `received` what the server sent."""
        return {
            name: self.slice(tree, starting_point(tree, received.get(name, {})), plan)
            for name, tree in up.items()
        }

    def slice(self, tree: Tree, start: Tree, plan: Plan) -> Tree:
        """One slice of it; `start` is what it began with, zeros where it was not sent down."""
        return tree

    def __str__(self) -> str:
        return written(self, self.name)


@hostilities
@dataclass(frozen=True)
class SignFlip(Hostile):
    """They send the reverse of what they learned: start - scale (trained - start)."""

    name: ClassVar[str] = "sign_flip"
    scale: float = 1.0

    def slice(self, tree: Tree, start: Tree, plan: Plan) -> Tree:
        return _moved(tree, start, -self.scale)


@hostilities
@dataclass(frozen=True)
class Scaled(Hostile):
    """They send too much of what they learned: start + factor (trained - start)."""

    name: ClassVar[str] = "scaled"
    factor: float = 10.0

    def slice(self, tree: Tree, start: Tree, plan: Plan) -> Tree:
        return _moved(tree, start, self.factor)


@hostilities
@dataclass(frozen=True)
class Collude(Hostile):
    """All of them send the same: start + size |start| d, with one random direction d in a round.

    What was not sent down has no start, and is sent as the method has it.
    """

    name: ClassVar[str] = "collude"
    size: float = 0.5

    def slice(self, tree: Tree, start: Tree, plan: Plan) -> Tree:
        gen = plan.gen(-1, "direction of colluding clients")
        if not _norm(start):
            return tree
        drawn = {k: _normal(v, gen) for k, v in tree.items() if v.is_floating_point()}
        length = self.size * _norm({k: start[k] for k in drawn}) / max(_norm(drawn), 1e-12)
        return {k: start[k] + length * drawn[k] if k in drawn else v for k, v in tree.items()}


@hostilities
@dataclass(frozen=True)
class LabelFlip(Hostile):
    """They train on wrong labels: class c is called K - 1 - c."""

    name: ClassVar[str] = "label_flip"

    def data(self, data: ClientData) -> ClientData:
        if data.train.y.is_floating_point():
            raise BadInput(
                "label_flip turns classes, and this data has none; choose sign_flip, scaled or"
                " collude"
            )
        return replace(data, train=_Flipped(data.train, data.classes))


class _Flipped:
    """A split whose classes are turned round."""

    def __init__(self, split: Split, classes: int) -> None:
        self._split, self.y = split, classes - 1 - split.y
        self.augmented = split.augmented

    def __len__(self) -> int:
        return len(self._split)

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        return self._split.x(idx, gen)


def parse_hostile(text: str) -> Hostile:
    """From an expression.

    >>> parse_hostile("scaled(share=0.1, factor=2.5)")
    Scaled(share=0.1, factor=2.5)
    """
    hostile: Hostile = hostilities.build(parse_one(text))
    return hostile


def _moved(tree: Tree, start: Tree, factor: float) -> Tree:
    """Parameters moved by so many times their change; counts and the like as they are."""
    return {
        key: start[key] + factor * (value - start[key]) if value.is_floating_point() else value
        for key, value in tree.items()
    }


def _normal(like: Tensor, gen: Generator) -> Tensor:
    return torch.randn(like.shape, generator=gen, dtype=like.dtype)


def _norm(tree: Tree) -> float:
    return sqrt(sum(float(value.double().square().sum()) for value in tree.values()))
