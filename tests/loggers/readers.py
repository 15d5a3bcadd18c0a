"""What the tools' own readers find in a log: every run's configuration, curves and summary."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Curves = dict[str, list[tuple[int, float]]]
"""Name -> (round, value) in the order of writing."""


@dataclass
class Found:
    """The runs of a folder, all together: a resumed run has parts, and a second run would show."""

    configs: list[dict[str, str]] = field(default_factory=list)
    curves: Curves = field(default_factory=lambda: defaultdict(list))
    summaries: list[dict[str, str]] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)


def read(tool: str, folder: Path) -> Found:
    return {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}[tool](folder)


def _tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    found = Found(runs={folder.name})
    tables = {"config": found.configs, "summary": found.summaries}
    for tag in read.Tags()["tensors"]:
        points = [(e.step, make_ndarray(e.tensor_proto).item()) for e in read.Tensors(tag)]
        if tag in tables:
            tables[tag].extend(_table(text.decode()) for _, text in points)
        else:
            found.curves[tag] = points
    return found


def _table(markdown: str) -> dict[str, str]:
    rows = [line.strip("| ").split(" | ", 1) for line in markdown.splitlines()[2:]]
    assert len({key for key, _ in rows}) == len(rows)
    return dict(rows)  # type: ignore[arg-type]


def _mlflow(folder: Path) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient(folder.resolve().as_uri())
    found = Found()
    homes = [e.experiment_id for e in client.search_experiments()]
    for run in client.search_runs(homes):
        found.runs.add(run.info.run_id)
        found.configs.append(run.data.params)
        summary = {k: v for k, v in run.data.tags.items() if k.startswith("summary/")}
        for key in run.data.metrics:
            points = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]
            if key.startswith("summary/"):
                assert len(points) == 1
                summary[key] = repr(points[0][1])
            else:
                found.curves[key] += points
        found.summaries.append({k.removeprefix("summary/"): v for k, v in summary.items()})
    return found


def _wandb(folder: Path) -> Found:
    found = Found()
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        config, summary = dict[str, str](), dict[str, str]()
        for record in _wandb_records(file):
            if record.HasField("run"):
                found.runs.add(record.run.run_id)
            config |= _items(record.config.update)
            summary |= _items(record.summary.update)
            point = {k: json.loads(v) for k, v in _items(record.history.item).items()}
            for key in point.keys() - {"round"}:
                if not key.startswith("_"):
                    found.curves[key].append((point["round"], float(point[key])))
        if config := {k: _shown(v) for k, v in config.items() if not k.startswith("_")}:
            found.configs.append(config)
        mine = {k: _shown(v) for k, v in summary.items() if k.startswith("summary/")}
        if mine:
            found.summaries.append({k.removeprefix("summary/"): v for k, v in mine.items()})
    return found


def _items(items: Any) -> dict[str, str]:
    return {item.key or "/".join(item.nested_key): item.value_json for item in items}


def _shown(value_json: str) -> str:
    return str(json.loads(value_json))


def _wandb_records(file: Path) -> Iterator[Any]:
    """The transaction log: a header of 7 bytes, then LevelDB's log format, whose pieces never
    cross a block of 32 KiB: checksum, length, kind (1 whole, 2 first, 3 middle, 4 last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        piece = data[at + 7 : at + 7 + length]
        if len(piece) < length:
            return  # torn by a kill
        whole, at = whole + piece, at + 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""
