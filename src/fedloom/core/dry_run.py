"""A program played with made-up rows: what travels, seen without anybody's data.

Names and shapes of what a client sends follow from the method, the network and the round, and are
declared nowhere. A client with a few random rows that answers a real message shows all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from fedloom.core.client import client
from fedloom.core.data import ClientData, HeldRows
from fedloom.core.flat_rows import made_up_rows
from fedloom.core.message import Down, Plan, Up
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.tree import State


class Rows(Protocol):
    """The rows of every client of a program."""

    @property
    def program(self) -> Program:
        """What is played."""
        ...

    def client(self, cid: int) -> ClientData:
        """The rows of one client."""
        ...


@dataclass(frozen=True)
class MadeUpData:
    """Random rows for every client of a program; the same three splits for all purposes."""

    program: Program
    classes: int
    rows: int
    labels: int
    """How many of the classes a client has; another one has others."""
    tokens: bool = False
    """Whether inputs are token ids. The ids 0 and 1 are in every vocabulary."""

    def client(self, cid: int) -> ClientData:
        """The rows of one client."""
        net, gen = self.program.net(cid), generator("made-up rows", cid)
        size = (self.rows, *net.shape)
        if net.fields:
            inputs = made_up_rows(net.fields, self.rows, gen)
        elif self.tokens:
            inputs = torch.randint(0, 2, size, generator=gen)
        else:
            inputs = torch.randn(size, generator=gen)
        labels = (torch.arange(self.rows) % self.labels + cid) % self.classes
        split = HeldRows(inputs, self.program.task.made_up(labels, self.classes))
        return ClientData(split, split, split, self.classes)


@dataclass(frozen=True)
class PlayedVisit:
    """One client's answer to one message."""

    visit: Visit
    up: Up
    kept: State


def play_client(data: Rows, cid: int, down: Down, own: State | None = None) -> PlayedVisit:
    """One client's answer to a message; `own` is what it kept before."""
    visit = Visit(data.program.without_masks(), cid, data.client(cid), down, own)
    return PlayedVisit(visit, *client(visit))


def play(
    data: Rows, plans: Sequence[Plan], cohort: Sequence[int], players: Sequence[int] | None = None
) -> Iterator[PlayedVisit]:
    """A run from its beginning, in which these clients take part in every step.

    Where only some of them are played, the others count as absent.
    """
    program = data.program.without_masks()
    server, kept = initial_server(program), dict[int, State]()
    for plan in plans:
        r = Round(program, plan, server, cohort)
        for cid in r.cohort if players is None else players:
            own = kept.get(cid)
            played = play_client(data, cid, send(r, cid, own), own)
            kept[cid] = played.kept
            r.add(cid, played.up)
            yield played
        if r.masked is not None:
            r.unmask(np.zeros(r.masked.count, np.uint64))
        server = merge(r)


def in_short(program: Program) -> Program:
    """The same program with one epoch of local training: names and shapes do not depend on it."""
    short = copy.copy(program)
    method = program.method
    short.method = replace(method, opt=replace(method.opt, epochs=1, steps=None))
    return short
