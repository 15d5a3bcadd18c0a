"""Accuracy against megabytes: the papers' methods with smaller uploads.

    python benchmarks/uploads.py     what is not in results/uploads.json yet; about 10 minutes

One seed; accuracy is the mean over the clients' personal models, each as its client uses it
(fedloom's protocol). Megabytes are the tensors that left all clients in the whole run, as the
journal has them, and the same on Flower's wire, in numpy's format with zstd on top.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array
from papers import METHODS

from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.tree import State
from fedloom.data import Source, load
from fedloom.engines import Absent, JobOf
from fedloom.engines.inline import Inline
from fedloom.engines.zstd_arrays import squeezed
from fedloom.files import write_json
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "uploads.json"
COMPRESSIONS = ("none", "quantize", "quantize(bits=4)", "top_k(share=0.1)", "top_k(share=0.01)")
TRAINING = {"partition": "dirichlet(alpha=0.3)", "optimizer": "adam", "lr": 0.005}
SETTINGS = {
    "digits": {**TRAINING, "clients": 10, "rounds": 12, "batch_size": 16, "eval_every": 12},
    "fashion_mnist": {
        **TRAINING,
        "model": "mlp(hidden=[128])",
        "lr": 0.002,
        "clients": 5,
        "rounds": 6,
        "batch_size": 32,
        "eval_every": 6,
    },
}
ROWS = {"digits": 1797, "fashion_mnist": 1500}
"""Of each data set, the first ones."""


class Weighed(Inline):
    """The reference engine, which also weighs every upload as it would be on Flower's wire."""

    wire_bytes = 0

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        for cid, up, own in super().clients(ids, job, ask):
            assert isinstance(up, Up)
            for tree in up.state.values():
                self.wire_bytes += sum(len(squeezed(Array(v.numpy())).data) for v in tree.values())
            yield cid, up, own


def recorded() -> dict[str, Any]:
    """What was measured so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}


@cache
def rows_of(data: str) -> Source:
    """The rows that are divided over the clients."""
    source, rows = load(data), ROWS[data]
    return replace(source, x=source.x[:rows], y=source.y[:rows], official_test=None, path=None)


def measure(data: str, method: str, compression: str) -> dict[str, float]:
    """One run."""
    settings = {"data": data, "method": method, "compression": compression, **SETTINGS[data]}
    engine = Weighed()
    config = RunConfig.checked(settings)
    result = start(Experiment.build(config, data=rows_of(data)), engine)
    return {
        "accuracy": round(result.accuracy, 4),
        "megabytes": round(result.summary.bytes_up / 1e6, 4),
        "wire_megabytes": round(engine.wire_bytes / 1e6, 4),
    }


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    for data in SETTINGS:
        for title, method in METHODS.items():
            for compression in COMPRESSIONS:
                label = f"{data} | {title} | {compression}"
                measured = recorded()
                if label not in measured["runs"]:
                    measured["runs"][label] = measure(data, method, compression)
                    of_all = {"settings": SETTINGS, "versions": current_versions()}
                    write_json(RESULTS, measured | of_all)
                    print(label, measured["runs"][label], flush=True)


if __name__ == "__main__":
    main()
