"""How many rows a forward pass of an evaluation should take, network by network.

    python benchmarks/evaluation.py                  # some minutes

CPU microseconds a row of the logits in evaluation mode, one thread, for random rows, in passes of
several sizes that take turns; and whether the size changes a bit of the logits. Predictions take
`fedloom.core.outputs.PREDICTED_ROWS`, one number for all networks: every process of a run must
choose alike, so that none may go by its own clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedloom.core.net import Net
from fedloom.core.outputs import PREDICTED_ROWS
from fedloom.core.rng import rng_scope
from fedloom.core.tree import place
from fedloom.files import write_json
from fedloom.models import build_model
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
CPU = torch.device("cpu")
EARLIER = 512
"""Rows per pass until now."""
SIZES = (8, 16, 32, 64, PREDICTED_ROWS, 256, EARLIER)
NETWORKS: dict[str, tuple[tuple[int, ...], int]] = {
    "mlp": ((1, 28, 28), 2048),
    "cnn4": ((1, 28, 28), 1024),
    "cnn4 ": ((3, 32, 32), 1024),
    "resnet18": ((3, 64, 64), 512),
}
"""Expression -> the shape of a row, and rows in all."""


def main() -> None:
    """Measure and write."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--networks", nargs="+", default=list(NETWORKS))
    asked.add_argument("--repeats", type=int, default=3)
    given = asked.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"python benchmarks/evaluation.py {' '.join(sys.argv[1:])}".strip(),
        "cores": os.cpu_count(),
        "versions": current_versions(),
        "networks": [],
    }
    for name in given.networks:
        record["networks"].append(reading(name, given.repeats))
        print(record["networks"][-1], flush=True)
        write_json(RESULTS, record)


def reading(name: str, repeats: int) -> dict[str, Any]:
    """One network in batches of all sizes, and of the size that the rule chooses."""
    shape, count = NETWORKS[name]
    with rng_scope("evaluation", name):
        net, x = build_model(name.strip(), shape, 10, seed=0), torch.rand(count, *shape)
    w = {key: place(value, CPU) for key, value in net.tree().items()}
    spent: dict[int, list[float]] = {size: [] for size in SIZES}
    logits: dict[int, Tensor] = {}
    for _ in range(repeats):
        for size in SIZES:
            begun = time.process_time()
            logits[size] = scanned(net, w, x, size)
            spent[size].append(1e6 * (time.process_time() - begun) / count)
    last = logits[EARLIER]
    return {
        "network": name.strip(),
        "shape": list(shape),
        "times_as_fast": round(median(map(_ratio, spent[EARLIER], spent[PREDICTED_ROWS])), 3),
        "microseconds_a_row": {size: round(median(all_), 1) for size, all_ in spent.items()},
        "same_bits": {size: bool(torch.equal(z, last)) for size, z in logits.items()},
    }


@torch.no_grad()
def scanned(net: Net, w: dict[str, Tensor], x: Tensor, size: int) -> Tensor:
    """Logits of all rows."""
    return torch.cat([net(w, place(rows, CPU))[net.logits] for rows in x.split(size)])


def _ratio(before: float, now: float) -> float:
    return before / now


if __name__ == "__main__":
    main()
