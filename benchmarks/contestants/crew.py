"""Processes of the hand-written loops: loaded before the clock runs, ended by a None."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from work import Work


class Crew:
    """Workers that take jobs from one queue; weights cross in shared memory.

    `worker(folder, shared, results, jobs, done)` runs in every process; `shared` is the global
    model as one long vector, `results` has a row for every client's.
    """

    def __init__(
        self, worker: Callable[..., None], folder: Path, work: Work, workers: int, warm_up: Any
    ) -> None:
        self.shared = torch.cat([v.reshape(-1) for v in work.initial.values()]).share_memory_()
        self.results = torch.zeros(len(work.train), len(self.shared)).share_memory_()
        context = mp.get_context("spawn")
        self.jobs, self.done = context.Queue(), context.Queue()
        state = (folder, self.shared, self.results, self.jobs, self.done)
        self._processes = [context.Process(target=worker, args=state) for _ in range(workers)]
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self.jobs.put(warm_up)
        for _ in self._processes:
            self.done.get()

    def average(self, cohort: list[int], sizes: list[float]) -> None:
        """The mean of a cohort's results by their sizes becomes the global model."""
        total = torch.zeros(len(self.shared), dtype=torch.float64)
        for cid in sorted(cohort):
            total.add_(self.results[cid].double(), alpha=sizes[cid])
        self.shared.copy_(total / sum(sizes[cid] for cid in sorted(cohort)))

    def end(self) -> None:
        """Let all processes go."""
        for _ in self._processes:
            self.jobs.put(None)
        for process in self._processes:
            process.join()


def unflatten(flat: Tensor, work: Work) -> list[Tensor]:
    """Tensors cut from one long vector."""
    shapes = [v.shape for v in work.initial.values()]
    parts = flat.split([s.numel() for s in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
