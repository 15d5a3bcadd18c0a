"""Run folders written by hand, so that every number of a report can be worked out on paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.evaluate import summarize
from fedloom.data import Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.runs.config import RunConfig

UP, DOWN, SECONDS = 2_000_000, 4_000_000, 2.0
"""Of every round, all clients together."""


def write_run(
    path: Path,
    method: str = "fedavg",
    curve: Sequence[Sequence[float]] = ((0.5, 0.5),),
    *,
    rows: int = 100,
    ended: bool = True,
    partition: int = 0,
    notes: Sequence[Any] = (),
    findings: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> Path:
    """A run whose `curve[t][i]` is the accuracy of client i after round t + 1.

    Runs with the same `partition` have the same clients.
    """
    clients = len(curve[0])
    settings = {"rounds": len(curve), "clients": clients, "model": "mlp", **settings}
    config = RunConfig(method=method, out=str(path), **settings)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config.model_dump()))
    (path / "versions.json").write_text(json.dumps({"fedloom": "0.1.0", "torch": "2"}))
    held = [ClientRows(np.array([i, 50 + partition])) for i in range(clients)]
    divided = Partition(held, source="data")
    divided.save(path / "partition.json")
    records = [_record(t, values, rows) for t, values in enumerate(curve, start=1)]
    for record, note in zip(records, notes, strict=False):
        record["notes"] = {"fedpac": note}
    _lines(path / "metrics.jsonl", records)
    _lines(path / "ledger.jsonl", _ledger(len(records), clients))
    if findings:
        _lines(path / "diagnostics.jsonl", findings)
    if ended:
        last = records[-1]["scores"]["received/test"]
        summary = {
            "method": method,
            "accuracy": last["mean"],
            "accuracy_std": last["std"],
            "worst_decile": last["worst_decile"],
            "selected": len(curve),
            "state_sha256": "ab" * 32,
            "partition_sha256": divided.fingerprint,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def _record(t: int, values: Sequence[float], rows: int) -> dict[str, Any]:
    scores = {
        **summarize(list(values), [rows] * len(values)),
        "clients": {str(i): a for i, a in enumerate(values)},
        "n": {str(i): rows for i in range(len(values))},
    }
    return {
        "step": t - 1,
        "round": t,
        "kind": "train",
        "owner": "model",
        "cohort": list(range(len(values))),
        "loss": 1.0 / t,
        "bytes_up": UP,
        "bytes_down": DOWN,
        "seconds": SECONDS,
        "activities": {"main": {"local training": 1.0}, "workers": {}},
        "scores": {"received/test": scores},
    }


def _ledger(rounds: int, clients: int) -> list[dict[str, Any]]:
    tensors = [
        {"name": "model/w", "shape": [10, 3], "type": "float32", "bytes": 120},
        {"name": "model/b", "shape": [], "type": "float32", "bytes": 4},
    ]
    shared = [{"set": 0, "clients": list(range(clients))}]
    steps = [
        {"step": t, "round": t + 1, "kind": "train", "owner": "model", "shared": shared}
        for t in range(rounds)
    ]
    return [{"set": 0, "bytes": 124, "numbers": ["rows"], "tensors": tensors}, *steps]


def _lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
