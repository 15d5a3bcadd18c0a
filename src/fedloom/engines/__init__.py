"""Where clients are computed. All engines give the same bytes; they differ in speed and place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from fedloom.core.data import Federation
from fedloom.core.evaluate import Ask, Score
from fedloom.core.message import Down, Up
from fedloom.core.program import Program
from fedloom.core.stopwatch import Stopwatch
from fedloom.core.tree import State
from fedloom.errors import BadInput, UnknownName


@dataclass(frozen=True)
class Job:
    """One client's message and what the client keeps."""

    cid: int
    down: Down
    own: State | None


JobOf = Callable[[int], Job]
"""Makes a client's job when an engine is ready for it, so that few exist at a time."""


class Engine(Protocol):
    """Answers arrive in any order; whoever consumes them orders them."""

    @property
    def elsewhere(self) -> Stopwatch:
        """Seconds by activity of the engine's other processes, all together."""

    def open(self, program: Program, data: Federation) -> None:
        """Get ready for a run; an engine may be opened for one run after another."""

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        """Every client's answer: (id, what goes up, what the client keeps)."""

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, dict[str, Score]]]:
        """Every client's scores by "moment/split"."""

    def close(self) -> None:
        """Let go of processes and memory."""


def make_engine(name: str, workers: int = 2, device: str = "cpu") -> Engine:
    """An engine by name: `inline`, `pool` or `vectorized`."""
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
    raise UnknownName("engine", name, ["inline", "pool", "vectorized"])


def check_device(name: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as e:  # torch raises all of these
        reason = str(e).splitlines()[0]
        raise BadInput(f"device {name!r} cannot be used here ({reason}); use device cpu") from None
    return device
