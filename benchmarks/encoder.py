"""The five papers' methods on a pretrained encoder: frozen, with LoRA adapters, and trained whole.

    python benchmarks/encoder.py               what is not in results/encoder.json yet
    python benchmarks/encoder.py frozen        one way of the three

EfficientNet-Lite0 with its ImageNet weights and a projector, the domains as clients. All ways have
the same rounds, and every run is made with several learning rates, of which validation rows choose
one. So that it ends within an hour on one thread, a client has few rows and images are of 64 x 64
pixels. Seconds are the processor's, which other work on the machine does not change much.
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
from fedloom.runs.watcher import RunView

RESULTS = Path(__file__).parent / "results" / "encoder.json"
DATA = ("office_caltech10", "pacs")
TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS = 32, 28, 60
"""Of every client."""
ROWS = TRAIN_ROWS + VALIDATION_ROWS + TEST_ROWS
SPLIT = f"merged(train={TRAIN_ROWS / ROWS}, val={VALIDATION_ROWS / ROWS})"
RATES = (0.01, 0.05)
WAYS = {
    "frozen": "efficientnet_lite0(frozen='body.*', projector=256)",
    "all": "efficientnet_lite0(projector=256)",
    "lora": "efficientnet_lite0(lora=8, projector=256)",
}
"""Way -> network."""
ON_VALIDATION = "fedloom(split=val)"
SETTINGS = {
    "rounds": 12,
    "eval_every": 3,
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
            draw.choice(np.flatnonzero(source.domain == domain), ROWS, False)
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


class Clock(fl.OtherProtocols):
    """Scores validation rows, and counts the processor's seconds of every step without that."""

    def begun(self, run: RunView) -> None:
        super().begun(run)
        self.seconds: list[float] = []
        self._since = time.process_time()

    def step(self, run: RunView, record: RoundRecord) -> None:
        self.seconds.append(time.process_time() - self._since)
        super().step(run, record)
        self._since = time.process_time()


def measure(method: str, data: FederatedData, way: str, rate: float) -> dict:
    """One run; its validation rows are scored by the same protocol as its test rows."""
    clock = Clock([ON_VALIDATION])
    result = fl.run(
        method,
        data,
        model=WAYS[way],
        lr=rate,
        watchers=[clock],
        progress=False,
        **SETTINGS,
    )
    first, *later = clock.seconds
    scored = [record for record in result.records if record.headline is not None]
    return {
        "validation": round(clock.results[ON_VALIDATION].value, 4),
        "accuracy": round(result.accuracy, 4),
        "accuracy_by_round": {str(r.round): round(r.headline.value, 4) for r in scored},
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
                rates = measured["runs"].setdefault(f"{name} {way} {title}", {})
                for rate in RATES:
                    if str(rate) in rates:
                        continue
                    rates[str(rate)] = measure(method, data, way, rate)
                    of_all = {
                        "rows": [TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS],
                        "settings": SETTINGS,
                        "versions": current_versions(),
                    }
                    write_json(RESULTS, measured | of_all)
                    print(name, way, title, rate, rates[str(rate)], flush=True)


if __name__ == "__main__":
    main()
