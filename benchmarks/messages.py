"""How large Flower's messages are: `python benchmarks/messages.py`.

Ten clients of four random images each train a ResNet-18 for two rounds through the in-process grid,
which encodes every message as Flower does. For each method the largest order and the largest reply
of a training round are reported, beside the bytes of the tensors in them, and the seconds that
encoding and decoding took per megabyte. All of it goes to `benchmarks/results/messages.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message

from fedloom.data import FederatedData
from fedloom.engines.flower import in_process
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment

RESULTS = Path(__file__).parent / "results" / "messages.json"
METHODS = ("fedavg", "fedper", "fedavg + dbe", "fedpac", "scaffold", "fedem", "fedfomo", "apple")
CLIENTS, ROWS = 10, 4


class Scale:
    """Weighs every message that is encoded."""

    def __init__(self) -> None:
        self.sizes: dict[str, list[int]] = defaultdict(list)
        self.seconds = self.megabytes = 0.0

    def to_wire(self, message: Message) -> bytes:
        begun = time.perf_counter()
        data = ENCODE(message)
        self.seconds += time.perf_counter() - begun
        self.megabytes += len(data) / 1e6
        if message.metadata.message_type == "train":
            kind = "reply" if message.metadata.reply_to_message_id else "order"
            self.sizes[kind].append(len(data))
        return data

    def from_wire(self, data: bytes) -> Message:
        begun = time.perf_counter()
        message = DECODE(data)
        self.seconds += time.perf_counter() - begun
        return message


ENCODE, DECODE = in_process.to_wire, in_process.from_wire


def measure(method: str, model: str) -> dict[str, Any]:
    """One run of two rounds."""
    rng = np.random.default_rng(0)
    sites = [
        (rng.integers(0, 256, (ROWS, 3, 32, 32), dtype=np.uint8), np.arange(ROWS) % 10)
        for _ in range(CLIENTS)
    ]
    config = RunConfig(method=method, model=model, rounds=2, protocol="cohort", lr=0.001)
    experiment = Experiment.build(config, data=FederatedData.from_clients(sites))
    scale = Scale()
    in_process.to_wire, in_process.from_wire = scale.to_wire, scale.from_wire
    result = start(experiment, in_process.InProcess())
    rounds = [r for r in result.records if r.kind == "train"]
    return {
        "method": method,
        "order_MB": max(scale.sizes["order"]) / 1e6,
        "order_tensors_MB": max(r.bytes_down for r in rounds) / CLIENTS / 1e6,
        "reply_MB": max(scale.sizes["reply"]) / 1e6,
        "reply_tensors_MB": max(r.bytes_up for r in rounds) / CLIENTS / 1e6,
        "coding_seconds_per_MB": scale.seconds / scale.megabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    readings = []
    for method in args.methods:
        readings.append(measure(method, args.model))
        print(json.dumps(readings[-1]), flush=True)
    found = {"model": args.model, "clients": CLIENTS, "flwr": version("flwr"), "methods": readings}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
