"""The reference engine: one client after another in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from fedloom.core.client import client
from fedloom.core.data import Federation, data_of
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.site import CPU, Visit
from fedloom.core.stopwatch import Stopwatch
from fedloom.core.tree import State
from fedloom.engines import Engine, Job, JobOf


class Inline(Engine):
    """Plain calls, nothing else."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.elsewhere = Stopwatch()  # stays at zero: there are no other processes

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        self._program, self._data = program, data

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        for cid in ids:
            yield cid, *client(self._visit(job(cid)), ask)

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        for cid in ids:
            yield cid, evaluate(self._visit(job(cid)), ask)

    def close(self) -> None:
        pass

    def _visit(self, job: Job) -> Visit:
        data = data_of(self._data, job.cid)
        return Visit(self._program, job.cid, data, job.down, job.own, self.device)
