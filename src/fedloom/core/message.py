"""The only messages: a plan with a state goes down to a client, a state comes up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Generator

from fedloom.core.rng import generator
from fedloom.core.score import ClientScore
from fedloom.core.tree import State

Kind = Literal["train", "special", "adapt"]


@dataclass(frozen=True)
class Plan:
    """Everything a client must know of a round that is not a tensor.

    A run is a list of plans, resuming is an index into it. `owner` of a special round is
    "part.round", for instance "dbe.mean".
    """

    t: int
    kind: Kind = "train"
    owner: str = "model"
    cohort: Literal["sample", "all"] = "sample"
    seed: int = 0
    clients: int = 1

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Identifies the round in every random draw."""
        return (self.seed, self.t, self.kind, self.owner)

    @property
    def part(self) -> str:
        """Name of the part that owns a special round."""
        return self.owner.split(".")[0]

    def gen(self, cid: int, purpose: Hashable) -> Generator:
        """A generator for one purpose of one client in this round; cid -1 is the server."""
        return generator(*self.key, cid, purpose)

    def __str__(self) -> str:
        return f"round {self.t}" if self.kind == "train" else f"{self.kind} round {self.owner}"


@dataclass(frozen=True)
class Down:
    """Server to one client; read-only there."""

    plan: Plan
    state: State


@dataclass(frozen=True)
class Up:
    """One client to the server. What trains is in `state`; the rest is only logged."""

    state: State
    """By slice: the shared model under "model", and what each part sends under its name."""
    n: int
    """Training rows of the client; `ROWS_UNTOLD` with `secure_aggregation`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the training: `loss`."""
    scores: tuple[ClientScore, ...] = ()
    """Measured inside the call, where the trained model was at hand anyway."""

    def carrying(self, state: State) -> Up:
        """The same answer with another state."""
        return Up(state, self.n, self.metrics, self.scores)
