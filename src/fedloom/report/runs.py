"""Run folders read back: what a run was, how far it came, and what it measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.core.evaluate import Protocol
from fedloom.data import Partition
from fedloom.errors import BadInput, FedloomError, RunFolderError
from fedloom.launch.start import read_config
from fedloom.methods import describe, parse_method
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import find_protocol
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import Journal
from fedloom.runs.scores import Record

Unit = tuple[int, str]
"""Seed and partition: what two runs must share to be compared client by client."""


@dataclass(frozen=True)
class Curve:
    """One number for every scored round of a run."""

    rounds: list[int]
    accuracy: list[float]
    seconds: list[float]
    """Since the run began."""
    megabytes: list[float]
    """Sent and received until then by the average client."""


@dataclass(frozen=True)
class StoredRun:
    """One run folder."""

    paths: RunPaths
    config: RunConfig
    records: list[Record]
    summary: Record | None
    """None of a run that has not ended."""
    partition: str
    """Fingerprint: who holds which rows."""
    source: str
    """Fingerprint of the data."""
    sizes: list[tuple[int, int, int]]
    """Rows of each client for training, validation and testing."""
    shared_tests: list[str]
    versions: Record
    findings: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """The run in a folder, ended or not, also one that goes on."""
        paths = RunPaths(path)
        config = read_config(path)
        divided = Partition.load(paths.partition)
        return cls(
            paths=paths,
            config=config,
            records=Journal.read(paths.metrics) if paths.metrics.exists() else [],
            summary=_json(paths.summary) if paths.summary.exists() else None,
            partition=divided.fingerprint,
            source=divided.source,
            sizes=[(a, b, c) for a, b, c in divided.packed.sizes.tolist()],
            shared_tests=list(divided.shared),
            versions=_json(paths.versions) if paths.versions.exists() else {},
            findings=Journal.read(paths.diagnostics) if paths.diagnostics.exists() else [],
        )

    @property
    def unit(self) -> Unit:
        """What it shares with the runs it can be compared with."""
        return self.config.seed, self.partition

    @cached_property
    def method(self) -> str:
        """The expression without what is a default; of a method unknown here, as it was written."""
        try:
            return describe(parse_method(self.config.method))
        except FedloomError:
            return str((self.summary or {}).get("method", self.config.method))

    @property
    def clients(self) -> int:
        """Clients that train."""
        return len(self.sizes) - self.config.newcomers

    @property
    def done(self) -> int:
        """Rounds of training so far."""
        return max((r["round"] for r in self.records if r["kind"] == "train"), default=0)

    @property
    def protocol(self) -> Protocol:
        """How the run is judged."""
        return find_protocol(self.config.protocol)

    @property
    def value(self) -> str:
        """The key of a round's accuracy, as clients are averaged."""
        return "weighted" if self.protocol.average == "samples" else "mean"

    @cached_property
    def moments(self) -> list[str]:
        """Every "moment/split" that was scored, the one of the curve first."""
        found = {at: None for r in self.records for at in r["scores"]}
        return sorted(found, key=lambda at: (at != self.curve_at, at))

    @property
    def curve_at(self) -> str:
        """Which model the curve shows: of a method that adapts at the end, the one received."""
        chosen = self.protocol
        if chosen.on == "shared":
            return f"shared/{chosen.split}"
        settled = chosen.model == "global" or chosen.clients == "new" or chosen.moment == "final"
        return f"{'received' if settled else chosen.moment}/{chosen.split}"

    @property
    def result_at(self) -> str:
        """Which model the result is of."""
        chosen = self.protocol
        adapted = f"final/{chosen.split}"
        if chosen.clients == "new":
            moment = "received" if chosen.moment == "received" else "adapted"
            return f"newcomers/{moment}/{chosen.split}"
        wanted = chosen.moment == "final" and any(adapted in r["scores"] for r in self.records)
        return adapted if wanted else self.curve_at

    @property
    def curve_leads_to_result(self) -> bool:
        """Are curve and result of one model? An adapted one is scored at the end only."""
        return self.result_at == self.curve_at

    def curve(self, at: str | None = None) -> Curve:
        """Accuracy after every scored round, with the time and traffic until then."""
        found: dict[int, tuple[float, float, float]] = {}
        seconds = sent = 0.0
        for r in self.records:
            seconds += r["seconds"]
            sent += (r["bytes_up"] + r["bytes_down"]) / 1e6 / self.clients
            if scores := r["scores"].get(at or self.curve_at):
                found[r["round"]] = (scores[self.value], seconds, sent)
        rows = sorted(found.items())
        values = [[row[i] for _, row in rows] for i in range(3)]
        return Curve([t for t, _ in rows], *values)

    @property
    def accuracy(self) -> float | None:
        """The run's result as its protocol chose it; of an unfinished run, the newest number."""
        if self.summary is not None:
            return float(self.summary["accuracy"])
        so_far = self.curve().accuracy
        return so_far[-1] if so_far else None

    @cached_property
    def client_scores(self) -> dict[str, tuple[float, int]]:
        """Client -> (accuracy, test rows) at the rounds the result is of."""
        scored = [(r["round"], s) for r in self.records if (s := r["scores"].get(self.result_at))]
        rows = {cid: n for _, scores in scored for cid, n in scores["n"].items()}
        chosen = self._chosen([s for _, s in scored], [t for t, _ in scored])
        best_of_each = self.protocol.select == "best_test_per_client" and self.summary is not None
        found: dict[str, tuple[float, int]] = {}
        for cid, n in rows.items():
            values = [s["clients"][cid] for s in chosen if cid in s["clients"]]
            if values:
                whole = max(values) if best_of_each else sum(values) / len(values)
                found[cid] = (whole, n)
        return found

    def _chosen(self, scored: list[Record], rounds: list[int]) -> list[Record]:
        """The scores the result was made of (`runs.scores.result`)."""
        if self.summary is None or not scored:
            return scored[-1:]
        if self.protocol.select == "best_test_per_client":
            return scored
        if self.protocol.select == "mean_of_five_best_test":
            return sorted(scored, key=lambda s: s[self.value])[-5:]
        selected = self.summary["selected"]
        return [s for t, s in zip(rounds, scored, strict=True) if t == selected][-1:]


def find_runs(given: Iterable[Path]) -> list[StoredRun]:
    """The runs of these folders: run folders, or folders of comparisons."""
    folders = [run for path in given for run in _run_folders(path)]
    if not folders:
        raise BadInput("a report needs at least one run folder")
    return [StoredRun.read(path) for path in dict.fromkeys(folders)]


def _run_folders(path: Path) -> list[Path]:
    if RunPaths(path).config.exists():
        return [path]
    inside = sorted(p.parent for p in path.glob("*/config.json"))
    if not inside:
        raise RunFolderError(
            f"there is no run in {path}: neither it nor a folder in it has a config.json;"
            " check the path"
        )
    asked = _json(path / "comparison.json") if (path / "comparison.json").exists() else {}
    order = [Path(run).name for m in asked.get("methods", ()) for run in m["runs"]]
    place = {name: i for i, name in enumerate(order)}
    return sorted(inside, key=lambda p: (place.get(p.name, len(place)), p.name))


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise RunFolderError(f"cannot read {file} ({e.strerror}); restore it") from None
    except ValueError as e:
        raise RunFolderError(f"{file} is not valid JSON ({e}); restore it") from None
