"""Where clients are computed. All engines give the same bytes; they differ in speed and place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from fedloom.core.data import Federation
from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.stopwatch import Stopwatch
from fedloom.core.tree import State
from fedloom.errors import BadInput, UnknownName, needs_extra


@dataclass(frozen=True)
class Job:
    """One client's message and what the client keeps."""

    cid: int
    down: Down
    own: State | None


JobOf = Callable[[int], Job]
"""Makes a client's job when an engine is ready for it, so that few exist at a time."""


@dataclass(frozen=True)
class Absent:
    """In place of an upload: the client was asked, and no answer counts."""

    why: str


class Engine(Protocol):
    """Answers arrive in any order; whoever consumes them orders them.

    A class that names this one as its base has the defaults of an engine on one machine.
    """

    elsewhere: Stopwatch
    """Seconds by activity of the engine's other processes, all together."""
    keeps_states: bool = False
    """What clients keep stays where they are, and jobs and answers hold a receipt for it
    (`core.receipt`). Such a place holds only the newest two, so every step is checkpointed."""

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        """Get ready for a run; an engine may be opened for one run after another.

        `folder` is the run's, if it has one.
        """

    def present(self, clients: int) -> Sequence[int]:
        """Who of so many clients can be asked now, in id order."""
        return range(clients)

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        """Every client's answer: (id, what goes up, what the client keeps)."""

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        """The scores of every client that answers."""

    def close(self) -> None:
        """Let go of processes and memory."""


ENGINES = ("inline", "pool", "vectorized", "ray", "flower")


def make_engine(
    name: str,
    workers: int = 2,
    device: str = "cpu",
    *,
    ray_address: str | None = None,
) -> Engine:
    """An engine by name, one of `ENGINES`."""
    at = check_device(device)
    if name == "inline":
        from fedloom.engines.inline import Inline

        return Inline(at)
    if name == "pool":
        from fedloom.engines.pool import Pool

        return Pool(workers, at)
    if name == "vectorized":
        from fedloom.engines.vectorized import Vectorized

        return Vectorized(at)
    if name == "ray":
        from fedloom.engines.ray import Ray

        return Ray(workers, at, ray_address)
    if name == "flower":
        with needs_extra("flower"):
            from fedloom.engines.flower import InProcess

        return InProcess(at)
    raise UnknownName("engine", name, ENGINES)


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:  # torch raises all of these
        reason = str(e).splitlines()[0]
        raise BadInput(f"device {name!r} cannot be used here ({reason}); use device cpu") from None
    return device
