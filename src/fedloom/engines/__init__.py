"""Where clients are computed. All engines give the same bytes; they differ in speed and place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedloom.errors import BadInput, UnknownName, needs_extra

if TYPE_CHECKING:  # a run's configuration reads the table of engines, and must not import torch
    from pathlib import Path

    import torch

    from fedloom.core.data import Federation
    from fedloom.core.evaluate import Ask
    from fedloom.core.message import Down, Up
    from fedloom.core.program import Program
    from fedloom.core.score import ClientScore
    from fedloom.core.stopwatch import Stopwatch
    from fedloom.core.tree import State


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
    """Seconds by activity, summed over the engine's other processes."""
    keeps_states: bool = False
    """What clients keep stays where they are, and jobs and answers hold a receipt for it
    (`core.digest`). Only its newest states are kept there, so every step is checkpointed."""
    checkpoints_kept: int = 2
    """How many checkpoints of a run stay: so far back can it be taken."""

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


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is made from; each takes what concerns it."""

    workers: int
    device: torch.device
    ray_address: str | None


def _inline(settings: EngineSettings) -> Engine:
    from fedloom.engines.inline import Inline

    return Inline(settings.device)


def _pool(settings: EngineSettings) -> Engine:
    from fedloom.engines.pool import Pool

    return Pool(settings.workers, settings.device)


def _vectorized(settings: EngineSettings) -> Engine:
    from fedloom.engines.vectorized import Vectorized

    return Vectorized(settings.device)


def _ray(settings: EngineSettings) -> Engine:
    from fedloom.engines.ray import Ray

    return Ray(settings.workers, settings.device, settings.ray_address)


def _flower(settings: EngineSettings) -> Engine:
    with needs_extra("flower"):
        from fedloom.engines.flower import InProcess

    return InProcess(settings.device)


@dataclass(frozen=True)
class EngineEntry:
    """An engine that can be chosen by name."""

    description: str
    make: Callable[[EngineSettings], Engine]


ENGINES: Mapping[str, EngineEntry] = {
    "inline": EngineEntry("One client after another in this process.", _inline),
    "pool": EngineEntry(
        "`workers` processes on this machine, small equal clients in blocks; the same bytes.", _pool
    ),
    "vectorized": EngineEntry(
        "This process, small equal clients in blocks; the same bytes.", _vectorized
    ),
    "ray": EngineEntry(
        "`workers` actors on a Ray cluster, small equal clients in blocks; the same bytes.", _ray
    ),
    "flower": EngineEntry(
        "This process, every message through Flower's encoding, as a rehearsal of"
        " `fedloom deploy`; the same bytes.",
        _flower,
    ),
}
"""By name: the one list of engines, for the command line, the catalogue and the configuration."""
ALONE = ("inline", "vectorized")
"""Engines without processes of their own: whole runs go side by side with them."""


def make_engine(
    name: str,
    workers: int = 2,
    device: str = "cpu",
    *,
    ray_address: str | None = None,
) -> Engine:
    """An engine by name, one of `ENGINES`."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    return ENGINES[name].make(EngineSettings(workers, check_device(device), ray_address))


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:  # torch raises all of these
        reason = str(e).splitlines()[0]
        raise BadInput(f"device {name!r} cannot be used here ({reason}); use device cpu") from None
    return device
