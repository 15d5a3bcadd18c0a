"""The reference engine: one client after another in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fedloom.core.client import client
from fedloom.core.data import Federation, data_of
from fedloom.core.evaluate import Ask, Score, evaluate
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.site import CPU, Visit
from fedloom.core.tree import State
from fedloom.engines import Job


class Inline:
    """Plain calls, nothing else."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device

    def open(self, program: Program, data: Federation) -> None:
        self._program, self._data = program, data

    def clients(self, jobs: Iterable[Job], ask: Ask | None) -> Iterator[tuple[int, Up, State]]:
        for job in jobs:
            yield job.cid, *client(self._visit(job), ask)

    def evaluate(self, jobs: Iterable[Job], ask: Ask) -> Iterator[tuple[int, dict[str, Score]]]:
        for job in jobs:
            yield job.cid, evaluate(self._visit(job), ask)

    def close(self) -> None:
        pass

    def _visit(self, job: Job) -> Visit:
        data = data_of(self._data, job.cid)
        return Visit(self._program, job.cid, data, job.down, job.own, self.device)
