"""Run folders read back: what a run was, how far it came, and what it measured.

What a protocol chose as a result is read from the summary, and the curve that leads to it from the
records' headlines; nothing of it is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.core.metrics import Metric, metric
from fedloom.core.protocol import parse_protocol
from fedloom.core.score import GLOBAL, PERSONAL
from fedloom.data import Partition
from fedloom.errors import BadInput, FedloomError, RunFolderError
from fedloom.files import parse_json, read_regular
from fedloom.methods import describe, parse_method
from fedloom.record import At, Chosen, Finding, Headline, RoundRecord, Score, Spread, Summary
from fedloom.runs.config import RunConfig
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_record, read_records
from fedloom.runs.stored import read_config

Unit = tuple[int, str]
"""Seed and partition: what two runs must share to be compared client by client."""


@dataclass(frozen=True)
class Curve:
    """One number for every scored round of a run."""

    rounds: list[int]
    accuracy: list[float]
    """In the metric of the run, whichever that is."""
    seconds: list[float]
    """Since the run began."""
    megabytes: list[float]
    """Sent and received until then by the average client."""


@dataclass(frozen=True)
class ClientResult:
    """What one client reached."""

    accuracy: float
    """In the metric of the run, whichever that is."""
    rows: int
    """On so many rows."""


@dataclass(frozen=True)
class StoredRun:
    """One run folder."""

    paths: RunPaths
    config: RunConfig
    records: list[RoundRecord]
    summary: Summary | None
    """None of a run that has not ended."""
    partition: str
    """Fingerprint: who holds which rows."""
    source: str
    """Fingerprint of the data."""
    sizes: list[tuple[int, int, int]]
    """Rows of each client for training, validation and testing; newcomers come last."""
    client_names: list[str]
    """Of sites that have a name; numbers of others."""
    shared_tests: list[str]
    versions: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """The run in a folder, ended or not, also one that goes on; another format is refused.

        What the run imported is not imported here: it is code, perhaps a stranger's, and a page can
        do without.
        """
        paths = RunPaths(path)
        config = read_config(path)
        partition = Partition.load(paths.partition)
        return cls(
            paths=paths,
            config=config,
            records=read_records(paths.metrics, RoundRecord),
            summary=read_record(paths.summary, Summary) if paths.summary.exists() else None,
            partition=partition.fingerprint,
            source=partition.source,
            sizes=[(train, val, test) for train, val, test in partition.packed.sizes.tolist()],
            client_names=partition.client_names,
            shared_tests=list(partition.shared),
            versions=_json(paths.versions) if paths.versions.exists() else {},
            findings=read_records(paths.diagnostics, Finding),
        )

    @property
    def unit(self) -> Unit:
        """What it shares with the runs it can be compared with."""
        return self.config.seed, self.tested

    @property
    def tested(self) -> str:
        """Whose the result's values are: the clients of a partition, or its shared test sets."""
        return f"{self.partition}/shared tests" if self.on_shared_tests else self.partition

    @cached_property
    def method(self) -> str:
        """The method without what is a default, by which a reference such as `fedavg` is
        recognised however it was written; of a method unknown here, as it was written."""
        try:
            return describe(parse_method(self.config.method))
        except FedloomError:
            return self.config.method

    @property
    def label(self) -> str:
        """What the run is called: by default its method as it was written."""
        return self.config.title or self.method

    @property
    def clients(self) -> int:
        """Clients that train."""
        return len(self.sizes) - self.config.newcomers

    @property
    def done(self) -> int:
        """Rounds of training so far."""
        return max((r.round for r in self.records if r.kind == "train"), default=0)

    # -------------------------------------------------------------- which model

    @cached_property
    def headlines(self) -> list[tuple[RoundRecord, Headline]]:
        """The steps that have a point on the curve."""
        return [(r, r.headline) for r in self.records if r.headline is not None]

    @property
    def curve_at(self) -> At | None:
        """Which model the curve shows; None before anything was scored."""
        return self.headlines[0][1].at if self.headlines else None

    @property
    def result_at(self) -> At | None:
        """Which model the result is of; of a run that has not ended, the one of the curve."""
        return self.curve_at if self.summary is None else self.summary.result.at

    @property
    def curve_leads_to_result(self) -> bool:
        """Are curve and result of one model? An adapted one is scored at the end only."""
        return self.result_at == self.curve_at

    @property
    def on_shared_tests(self) -> bool:
        """Are the "clients" of the result test sets that belong to nobody?"""
        return self.result_at is not None and self.result_at.group == "shared tests"

    def name_of(self, client: int) -> str:
        """What readers call a client of the result."""
        return self.shared_tests[client] if self.on_shared_tests else self.client_names[client]

    @cached_property
    def weighted(self) -> bool:
        """Do clients count by their rows?"""
        if self.summary is not None:
            return self.summary.result.average == "samples"
        return parse_protocol(self.config.protocol).average == "samples"

    @cached_property
    def scored(self) -> dict[At, int]:
        """Every model that was scored, the curve's first -> in how many steps."""
        steps: dict[At, int] = {} if self.curve_at is None else {self.curve_at: 0}
        for record in self.records:
            for score in record.scores:
                steps[score.at] = steps.get(score.at, 0) + 1
        return steps

    # -------------------------------------------------------------- numbers

    def curve(self, at: At | None = None) -> Curve:
        """Accuracy after every scored round, with the time and traffic until then; `at`: of
        another model than that of the run's own curve."""
        points: dict[int, tuple[float, float, float]] = {}
        seconds = megabytes = 0.0
        for record in self.records:
            seconds += record.seconds
            megabytes += (record.bytes_up + record.bytes_down) / 1e6 / self.clients
            value = self._value(record, at or self.curve_at)
            if value is not None:
                points[record.round] = (value, seconds, megabytes)
        in_order = sorted(points.items())
        columns = [[point[i] for _, point in in_order] for i in range(3)]
        return Curve([t for t, _ in in_order], *columns)

    def _value(self, record: RoundRecord, at: At | None) -> float | None:
        """The number of one step, as clients are averaged."""
        if record.headline is not None and record.headline.at == at:
            return record.headline.value
        score = None if at is None else record.score(at)
        if score is None:
            return None
        return self.mean(_results(score, self.metric))

    def mean(self, results: Mapping[int, ClientResult]) -> float | None:
        """Over clients, which count as in the run's result; None of none."""
        if not results:
            return None
        values, rows = zip(*((r.accuracy, r.rows) for r in results.values()), strict=True)
        spread = Spread.of(values, rows, self.about.higher_is_better)
        return spread.weighted if self.weighted else spread.mean

    @property
    def metric(self) -> str:
        """What the numbers are."""
        return self.headlines[0][1].metric if self.headlines else "accuracy"

    @property
    def about(self) -> Metric:
        """Which way it is better, and how it is shown."""
        return metric(self.metric)

    @property
    def accuracy(self) -> float | None:
        """The run's result as its protocol chose it; of an unfinished run, the newest number."""
        if self.summary is not None:
            return self.summary.result.value
        return self.headlines[-1][1].value if self.headlines else None

    @cached_property
    def client_results(self) -> dict[int, ClientResult]:
        """Every client at the rounds the result is of; of an unfinished run, at the newest."""
        if self.summary is not None:
            return _results(self.summary.result)
        if not self.headlines:
            return {}
        record, headline = self.headlines[-1]
        return _results(record.score(headline.at), headline.metric)

    @cached_property
    def newcomer_results(self) -> dict[int, ClientResult]:
        """Every client that joined after the training."""
        return _results(None if self.summary is None else self.summary.newcomers)

    @cached_property
    def newcomers_as_received(self) -> dict[int, ClientResult]:
        """The same clients with what the server sends, before they trained or tuned anything."""
        if self.summary is None or self.summary.newcomers is None:
            return {}
        at = replace(self.summary.newcomers.at, moment="received")
        scores = [score for r in self.records if (score := r.score(at)) is not None]
        return _results(scores[-1] if scores else None, self.metric)

    @cached_property
    def single_heads(self) -> dict[str, dict[int, ClientResult]]:
        """Head -> what it scores alone at every client: the moment of the result, in the last of
        the rounds the result is of."""
        at = self.result_at
        if at is None:
            return {}
        last = (
            self.headlines[-1][0].round if self.summary is None else self.summary.result.rounds[-1]
        )
        return {
            score.at.model: _results(score, self.metric)
            for record in self.records
            if record.round == last
            for score in record.scores
            if score.at.model not in (PERSONAL, GLOBAL) and replace(score.at, model=at.model) == at
        }


def _results(of: Chosen | Score | None, name: str = "") -> dict[int, ClientResult]:
    """Of the clients whose rows define the metric."""
    if of is None:
        return {}
    values = of.values if isinstance(of, Chosen) else of.metrics[name]
    undefined = metric(of.metric if isinstance(of, Chosen) else name).may_be_undefined
    return {
        cid: ClientResult(value, rows)
        for cid, value, rows in zip(of.clients, values, of.rows, strict=True)
        if not (undefined and math.isnan(value))
    }


def find_runs(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs of these folders: run folders, or folders of comparisons."""
    folders = [run for path in paths for run in _run_folders(path)]
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
    place = {name: i for i, name in enumerate(_folders_of(path))}
    return sorted(inside, key=lambda p: (place.get(p.name, len(place)), p.name))


def _folders_of(comparison: Path) -> list[str]:
    """Names of a comparison's run folders, in its order."""
    file = comparison / "comparison.json"
    try:
        methods = _json(file).get("methods", ()) if file.exists() else ()
        # Older comparisons have no values per seed; their runs are refused by their format.
        return [Path(seed["run"]).name for row in methods for seed in row.get("seeds", ())]
    except (TypeError, AttributeError, KeyError):
        raise RunFolderError(f"{file} is no comparison of fedloom; restore it") from None


def _json(file: Path) -> Any:
    try:
        return parse_json(read_regular(file))
    except OSError as e:
        raise RunFolderError(f"cannot read {file} ({e.strerror}); restore it") from None
    except ValueError as e:
        raise RunFolderError(f"{file} is not valid JSON ({e}); restore it") from None
