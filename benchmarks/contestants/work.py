"""What every contestant trains: data, order of batches, network, rate. Knows nothing of fedloom.

`export.py` writes the folder that `Work` reads, so that all contestants see the same rows in the
same batches from the same initial weights. Peers shuffle by themselves; the number of steps and
their sizes are the same.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """One exported workload."""

    settings: dict
    x: Tensor  # uint8 [n, C, H, W]
    y: Tensor  # int64 [n]
    train: list[Tensor]
    """Rows of every client."""
    test: list[Tensor]
    orders: dict[tuple[int, int], list[Tensor]]
    """(round, client) -> for each epoch, positions in the client's rows."""
    cohorts: list[list[int]]
    """Clients of every round."""
    initial: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path) -> Work:
        """The workload of a folder."""
        held = np.load(folder / "work.npz")
        settings = json.loads((folder / "settings.json").read_text())
        clients = range(settings["clients"])
        return cls(
            settings=settings,
            x=torch.from_numpy(held["x"]),
            y=torch.from_numpy(held["y"]),
            train=[torch.from_numpy(held[f"train{i}"]) for i in clients],
            test=[torch.from_numpy(held[f"test{i}"]) for i in clients],
            orders={
                (t, i): list(torch.from_numpy(held[f"order{t}.{i}"]))
                for t, cohort in enumerate(settings["cohorts"])
                for i in cohort
            },
            cohorts=settings["cohorts"],
            initial={
                k.removeprefix("w:"): torch.from_numpy(held[k]) for k in held if k[:2] == "w:"
            },
        )

    @property
    def steps(self) -> list[int]:
        """Steps of every round that the exported batches stand for."""
        size = self.settings["batch"]
        return [
            sum(-(-len(order) // size) for i in cohort for order in self.orders[t, i])
            for t, cohort in enumerate(self.cohorts)
        ]

    def inputs(self, rows: Tensor, layout: torch.memory_format = torch.channels_last) -> Tensor:
        """Normalised images, channels last unless said otherwise."""
        scale, offset = self.settings["scale"], self.settings["offset"]
        x = torch.mul(self.x.index_select(0, rows), scale).add_(offset)
        return x.contiguous(memory_format=layout)


def network(settings: dict) -> nn.Sequential:
    """The 4-layer CNN, FedPAC's for grey images, or the MLP for digits, as plain modules."""
    if settings["model"] == "mlp":
        body = nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        )
        return nn.Sequential(body, nn.Linear(32, 10))
    if settings["model"] == "cnn4":
        body = nn.Sequential(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(1024, 512), nn.ReLU()),
        )
        return nn.Sequential(body, nn.Linear(512, 10))
    body = nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.LeakyReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 128), nn.LeakyReLU()),
    )
    return nn.Sequential(body, nn.Linear(128, 10))


def load(model: nn.Module, weights: dict[str, Tensor] | list[Tensor]) -> None:
    """Put weights into a model by their order."""
    values = weights.values() if isinstance(weights, dict) else weights
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


@torch.no_grad()
def accuracy(model: nn.Module, work: Work, rows: Tensor, batch: int = 512) -> float:
    """Share of right answers on some rows."""
    model.eval()
    right = 0
    for part in rows.split(batch):
        right += int((model(work.inputs(part)).argmax(1) == work.y[part]).sum())
    model.train()
    return right / len(rows)


def arguments() -> argparse.Namespace:
    """The command line all contestants share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path, help="folder of an exported workload")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--evaluate", action="store_true", help="test all clients every round")
    parser.add_argument(
        "--plain", action="store_true", help="as the peer's tutorial writes it: no tricks of ours"
    )
    return parser.parse_args()


def report(seconds: list[float], weights: list[Tensor] | None = None, **more: object) -> None:
    """The last line of a contestant's output: seconds of each round, and a digest of the result."""
    import hashlib

    digest = hashlib.sha256()
    for value in weights or []:
        digest.update(value.detach().contiguous().numpy().tobytes())
    print(json.dumps({"seconds": seconds, "sha256": digest.hexdigest()[:16], **more}), flush=True)
