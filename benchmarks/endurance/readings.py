"""Memory, handles and files of a run over its rounds, and whether they grow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import stats

BLOCKS = 20
WARM_UP = 0.25
"""The share of the rounds, from the first, in which caches and the history fill up."""


@dataclass(frozen=True)
class Reading:
    """At one moment."""

    round: int
    memory_MB: float
    """Resident set of the main process."""
    workers_MB: float
    """Of the largest of its workers."""
    handles: int
    files: int
    """In the run folder."""
    folder_MB: float


def reading(
    number: int, main: psutil.Process, workers: Sequence[psutil.Process], out: Path
) -> Reading:
    """Now."""
    sizes = file_sizes(out)
    return Reading(
        round=number,
        memory_MB=_megabytes(main),
        workers_MB=max(map(_megabytes, workers), default=0.0),
        handles=_handles(main) + sum(map(_handles, workers)),
        files=len(sizes),
        folder_MB=sum(sizes) / 2**20,
    )


def slopes(readings: Sequence[Reading]) -> dict[str, Any]:
    """Of each quantity its mean, and by how much it grows in 1,000 rounds: a 95 % interval, too."""
    late = [r for r in readings if r.round >= WARM_UP * readings[-1].round]
    if len(late) < 2 * BLOCKS:
        return {}
    rows = [asdict(r) for r in late]
    rounds = [r.round for r in late]
    names = ("memory_MB", "workers_MB", "handles", "files", "folder_MB")
    return {name: slope(rounds, [row[name] for row in rows], BLOCKS) for name in names}


def slope(rounds: Sequence[int], values: Sequence[float], blocks: int) -> dict[str, Any]:
    """Of one quantity. Readings that follow each other are alike, so the line is laid through means
    of blocks, which are nearly independent."""
    of_block = np.array_split(np.arange(len(rounds)), blocks)
    t, y = (
        np.array([np.mean(np.asarray(numbers)[block]) for block in of_block])
        for numbers in (rounds, values)
    )
    line = stats.linregress(t / 1000, y)
    half = 0.0  # of what never changes
    if y.std():
        half = float(stats.t.ppf(0.975, blocks - 2)) * float(line.stderr)
    return {
        "mean": round(float(y.mean()), 3),
        "per_1000_rounds": round(float(line.slope), 4),
        "interval": [round(float(line.slope) - half, 4), round(float(line.slope) + half, 4)],
    }


def file_sizes(out: Path) -> list[int]:
    """Of all files of a run, which come and go meanwhile."""
    sizes = []
    for folder, _, names in os.walk(out):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(os.path.join(folder, name)).st_size)
    return sizes


def _megabytes(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_info().rss) / 2**20
    return 0.0


def _handles(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.num_fds())
    return 0
