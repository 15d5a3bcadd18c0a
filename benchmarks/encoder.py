"""The five papers' methods on a pretrained encoder: frozen, with LoRA adapters, and trained whole.

    python benchmarks/encoder.py               what is not in results/encoder.json yet
    python benchmarks/encoder.py frozen        one way of the three

EfficientNet-Lite0 with its ImageNet weights and a projector, the domains as clients. So that it
ends within an hour on one thread, a client has few rows, images are of 64 x 64 pixels, and what
goes through the whole network in every step has few rounds. Seconds are the processor's, which
other work on the machine does not change much.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from papers import METHODS

import fedloom as fl
from fedloom.data import FederatedData, Source, federate, load
from fedloom.files import write_json
from fedloom.record import RoundRecord
from fedloom.runs.folder import current_versions
from fedloom.runs.watcher import RunView, Watcher

RESULTS = Path(__file__).parent / "results" / "encoder.json"
DATA = ("office_caltech10", "pacs")
TRAIN_ROWS, TEST_ROWS = 32, 60
"""Of every client."""
SPLIT = f"merged(train={TRAIN_ROWS / (TRAIN_ROWS + TEST_ROWS)}, val=0)"
FEW_ROUNDS, MANY_ROUNDS = 3, 12
WAYS = {
    "frozen": ("efficientnet_lite0(frozen='body.*', projector=256)", MANY_ROUNDS),
    "all": ("efficientnet_lite0(projector=256)", FEW_ROUNDS),
    "lora": ("efficientnet_lite0(lora=8, projector=256)", FEW_ROUNDS),
}
"""Way -> network, and rounds."""
SETTINGS = {
    "lr": 0.01,
    "momentum": 0.9,
    "batch_size": 16,
    "epochs": 1,
    "start": "pretrained:efficientnet_lite0",
    "start_without": "head.* projector.*",
}


def few_rows(name: str) -> FederatedData:
    """Of every domain the same number of rows, at random: a client each."""
    source = load(name, normalize="none")
    draw = np.random.default_rng(0)
    assert source.domain is not None
    chosen = np.concatenate(
        [
            draw.choice(np.flatnonzero(source.domain == domain), TRAIN_ROWS + TEST_ROWS, False)
            for domain in range(len(source.domain_names))
        ]
    )
    few = Source.from_arrays(
        np.asarray(source.x[chosen]),
        np.asarray(source.y)[chosen],
        name=f"{name}, {len(chosen)} rows",
        class_names=source.class_names,
        domain=np.asarray(source.domain_names)[source.domain[chosen]],
        normalize="none",
    )
    return federate(few, "by_domain", split=SPLIT)


class Clock(Watcher):
    """Seconds of the processor at the end of every step."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def begun(self, run: RunView) -> None:
        self.at.append(time.process_time())

    def step(self, run: RunView, record: RoundRecord) -> None:
        self.at.append(time.process_time())

    def seconds(self) -> list[float]:
        """Of every step."""
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


def measure(method: str, data: FederatedData, way: str) -> dict:
    """One run."""
    model, rounds = WAYS[way]
    clock = Clock()
    result = fl.run(
        method,
        data,
        model=model,
        rounds=rounds,
        eval_every=FEW_ROUNDS,
        watchers=[clock],
        progress=False,
        **SETTINGS,
    )
    first, *later = clock.seconds()
    scored = [record for record in result.records if record.headline is not None]
    return {
        "accuracy": round(result.accuracy, 4),
        "accuracy_by_round": {str(r.round): round(r.headline.value, 4) for r in scored},
        "rounds": result.summary.rounds,
        "megabytes_up": round(result.summary.bytes_up / 1e6, 3),
        "megabytes_down": round(result.summary.bytes_down / 1e6, 3),
        "megabytes_of_later_rounds": round(
            sum(r.bytes_up + r.bytes_down for r in result.records[1:]) / 1e6 / len(later), 3
        ),
        "first_round_seconds": round(first, 2),
        "later_round_seconds": round(sum(later) / len(later), 3),
    }


def main() -> None:
    torch.set_num_threads(1)
    measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    for name in DATA:
        data = few_rows(name)
        for way in sys.argv[1:] or WAYS:
            for title, method in METHODS.items():
                label = f"{name} {way} {title}"
                if label in measured["runs"]:
                    continue
                measured["runs"][label] = measure(method, data, way)
                measured |= {
                    "rows": [TRAIN_ROWS, TEST_ROWS],
                    "settings": SETTINGS,
                    "versions": current_versions(),
                }
                write_json(RESULTS, measured)
                print(label, measured["runs"][label], flush=True)


if __name__ == "__main__":
    main()
