"""Run folders written by hand, so that every number of a report can be worked out on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.core.protocol import parse_protocol
from fedloom.data import Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.record import (
    FORMAT,
    At,
    Chosen,
    Finding,
    Headline,
    LedgerStep,
    RoundRecord,
    Score,
    SharedBy,
    SharedSet,
    SharedTensor,
    Summary,
)
from fedloom.runs.config import RunConfig
from fedloom.runs.journal import line_of, write_record

UP, DOWN, SECONDS = 2_000_000, 4_000_000, 2.0
"""Of every round, all clients together."""
RECEIVED = At("received", "test")
JOINED = At("adapted", "test", group="newcomers")


def write_run(
    path: Path,
    method: str = "fedavg",
    curve: Sequence[Sequence[float]] = ((0.5, 0.5),),
    *,
    rows: int = 100,
    ended: bool = True,
    stopped: str | None = None,
    partition: int = 0,
    names: Sequence[str] = (),
    heads: Mapping[str, Sequence[float]] | None = None,
    joined: Sequence[float] = (),
    notes: Sequence[Any] = (),
    findings: Sequence[Finding] = (),
    **settings: Any,
) -> Path:
    """A run whose `curve[t][i]` is the accuracy of client i after round t + 1, of which the last
    is its result.

    Runs with the same `partition` have the same clients. `names`: of the clients' sites.
    `stopped`: why it ended early. `heads`: what single heads score alone at every client in the
    last round. `joined`: what newcomers reach.
    """
    clients = len(curve[0])
    settings = {
        "rounds": len(curve),
        "clients": clients + len(joined),
        "newcomers": len(joined),
        "model": "mlp",
        **settings,
    }
    config = RunConfig(method=method, out=str(path), **settings)
    path.mkdir(parents=True)
    write_record(path / "config.json", config)
    versions = {"fedloom": "0.1.0", "torch": "2", "format": FORMAT}
    (path / "versions.json").write_text(json.dumps(versions))
    held = [ClientRows(np.array([i, 50 + partition])) for i in range(clients + len(joined))]
    divided = Partition(held, source="data", names=tuple(names))
    divided.save(path / "partition.json")
    average = parse_protocol(config.protocol).average
    records = [_record(t, values, rows, average) for t, values in enumerate(curve, start=1)]
    for i, note in enumerate(notes[: len(records)]):
        records[i] = replace(records[i], notes={"fedpac": note})
    records[-1] = replace(records[-1], scores=_last_scores(records[-1], heads or {}, joined, rows))
    _lines(path / "metrics.jsonl", records)
    _lines(path / "ledger.jsonl", _ledger(len(records), clients))
    if findings:
        _lines(path / "diagnostics.jsonl", findings)
    if ended:
        summary = _summary(config, records, divided.fingerprint, average)
        write_record(path / "summary.json", replace(summary, stopped=stopped))
    return path


Average = Literal["uniform", "samples"]


def _record(t: int, values: Sequence[float], rows: int, average: Average) -> RoundRecord:
    score = _score(RECEIVED, values, rows)
    spread = score.spread()
    return RoundRecord(
        step=t - 1,
        round=t,
        kind="train",
        owner="model",
        cohort=score.clients,
        loss=1.0 / t,
        bytes_up=UP,
        bytes_down=DOWN,
        seconds=SECONDS,
        activities={"main": {"local training": 1.0}, "workers": {}},
        scores=(score,),
        headline=Headline(
            RECEIVED, "accuracy", spread.weighted if average == "samples" else spread.mean
        ),
    )


def _score(at: At, values: Sequence[float], rows: int, first: int = 0) -> Score:
    ids = tuple(range(first, first + len(values)))
    return Score(at, ids, (rows,) * len(ids), {"accuracy": tuple(values)})


def _last_scores(
    record: RoundRecord, heads: Mapping[str, Sequence[float]], joined: Sequence[float], rows: int
) -> tuple[Score, ...]:
    alone = [_score(At("received", "test", name), values, rows) for name, values in heads.items()]
    new = [_score(JOINED, joined, rows, len(record.cohort))] if joined else []
    return (*record.scores, *alone, *new)


def _chosen(record: RoundRecord, at: At, average: Average) -> Chosen | None:
    score = record.score(at)
    if score is None:
        return None
    spread = score.spread()
    return Chosen(
        at=at,
        metric="accuracy",
        select="last",
        average=average,
        rounds=(record.round,),
        value=spread.weighted if average == "samples" else spread.mean,
        std=spread.std,
        worst_decile=spread.worst_decile,
        clients=score.clients,
        rows=score.rows,
        values=tuple(score.metrics["accuracy"]),
    )


def _summary(
    config: RunConfig, records: Sequence[RoundRecord], fingerprint: str, average: Average
) -> Summary:
    result = _chosen(records[-1], RECEIVED, average)
    assert result is not None
    return Summary(
        method=config.method,
        result=result,
        newcomers=_chosen(records[-1], JOINED, average),
        protocol=config.protocol,
        rounds=len(records),
        clients=len(result.clients),
        seed=config.seed,
        bytes_up=UP * len(records),
        bytes_down=DOWN * len(records),
        seconds=SECONDS * len(records),
        activities={},
        state_sha256="ab" * 32,
        partition_sha256=fingerprint,
        run=config.out,
    )


def _ledger(rounds: int, clients: int) -> list[SharedSet | LedgerStep]:
    tensors = (
        SharedTensor("model/w", (10, 3), "float32", 120),
        SharedTensor("model/b", (), "float32", 4),
    )
    shared = (SharedBy(0, tuple(range(clients))),)
    steps = [LedgerStep(t, t + 1, "train", "model", shared) for t in range(rounds)]
    return [SharedSet(0, tensors, ("rows",)), *steps]


def _lines(path: Path, records: Sequence[object]) -> None:
    path.write_bytes(b"".join(map(line_of, records)))
