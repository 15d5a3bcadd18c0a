"""The record of a run: every object that is written to a run folder, its one reader and writer.

    metrics.jsonl      RoundRecord, a line for every step
    digests.jsonl      StepDigests, a line for every step
    ledger.jsonl       SharedSet and LedgerStep
    diagnostics.jsonl  Finding
    unmasked.jsonl     UnmaskedSum, with masked uploads of other people's clients
    summary.json       Summary, when the run has ended

All of them are frozen and made of plain values. NaN and infinities are written as null and read as
NaN. `versions.json` holds the FORMAT a folder was written in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from fedloom.core.message import Kind
from fedloom.core.metrics import metric as known
from fedloom.core.score import PERSONAL, ClientScore, Moment, SplitName
from fedloom.errors import RunFolderError

FORMAT = 2
"""Of run folders. 1: scores nested by "moment/split", without single heads per client."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Group = Literal["clients", "newcomers", "shared tests", "clients on shared tests"]
"""On whom: the clients that train, clients kept out of training, test sets of nobody under the
global model (whose "clients" are numbered from 0), or each client's own model on these sets."""
Seconds = Mapping[str, Mapping[str, float]]
"""Place (main, workers) -> activity -> seconds."""
Kept = TypeVar("Kept")


@dataclass(frozen=True, order=True)
class At:
    """Which model was scored on what: the key of a score.

    >>> print(At("final", "test")), print(At("adapted", "val", group="newcomers"))
    final/test
    newcomers/adapted/val
    (None, None)
    """

    moment: Moment
    split: SplitName
    model: str = PERSONAL
    group: Group = "clients"

    @property
    def path(self) -> str:
        """The key with slashes only, as loggers name their curves."""
        group = [] if self.group == "clients" else [self.group]
        model = [] if self.model == PERSONAL else [self.model]
        return "/".join([*group, self.moment, self.split, *model])

    def __str__(self) -> str:
        group = "" if self.group == "clients" else f"{self.group}/"
        model = "" if self.model == PERSONAL else f" ({self.model})"
        return f"{group}{self.moment}/{self.split}{model}"


@dataclass(frozen=True)
class Spread:
    """One metric over clients."""

    mean: float
    weighted: float
    """By rows."""
    std: float
    worst_decile: float
    """Mean of the worst-served tenth, at least one client."""

    @classmethod
    def of(
        cls, values: Iterable[float], rows: Iterable[int], higher_is_better: bool = True
    ) -> Spread:
        """Of clients' values and rows.

        >>> Spread.of([1.0, 0.5], [3, 1]).weighted
        0.875
        """
        v, n = (torch.tensor(list(x), dtype=torch.float64) for x in (values, rows))
        worst = v.sort(descending=not higher_is_better).values[: max(1, len(v) // 10)]
        return cls(
            mean=float(v.mean()),
            weighted=float((v * n).sum() / n.sum()),
            std=float(v.std(unbiased=False)),
            worst_decile=float(worst.mean()),
        )

    @classmethod
    def of_metric(cls, metric: str, values: Iterable[float], rows: Iterable[int]) -> Spread:
        """The same without clients whose rows do not define the metric, unless none do."""
        about, pairs = known(metric), list(zip(values, rows, strict=True))
        if about.may_be_undefined:
            pairs = [pair for pair in pairs if not math.isnan(pair[0])] or pairs
        return cls.of([v for v, _ in pairs], [n for _, n in pairs], about.higher_is_better)


@dataclass(frozen=True)
class Score:
    """One model of one moment on one split, client by client."""

    at: At
    clients: tuple[int, ...]
    rows: tuple[int, ...]
    """Of each client, as the clients."""
    metrics: Mapping[str, tuple[Number, ...]]
    """Metric -> value of each client."""

    @classmethod
    def gathered(cls, group: Group, scores: Mapping[int, ClientScore]) -> Score:
        """One score from what its clients measured, in the order of their ids."""
        ids = tuple(sorted(scores))
        first = scores[ids[0]]
        return cls(
            At(first.moment, first.split, first.model, group),
            ids,
            tuple(scores[i].rows for i in ids),
            {name: tuple(scores[i].metrics[name] for i in ids) for name in first.metrics},
        )

    def by_client(self, metric: str = "accuracy") -> dict[int, float]:
        """Client -> value."""
        return dict(zip(self.clients, self.metrics[metric], strict=True))

    def spread(self, metric: str = "accuracy") -> Spread:
        """Over the clients."""
        return Spread.of_metric(metric, self.metrics[metric], self.rows)


@dataclass(frozen=True)
class Headline:
    """The number that stands for a step in the run's curve, as the protocol averages clients."""

    at: At
    metric: str
    value: Number


@dataclass(frozen=True)
class PrivacySpent:
    """What a run with `privacy` has told after a step, by the client that told most."""

    level: str
    """client or example: what epsilon is of."""
    epsilon: float
    """Towards whoever sees single uploads, as the server does."""
    epsilon_of_mean: float | None
    """Towards those who see means over a round's uploads only; None where nobody is promised to."""
    delta: float
    mechanisms: Mapping[int, int]
    """Client -> releases with noise in this step; of a run, in all of them."""
    repeated: Mapping[int, int] = field(default_factory=dict)
    """The same of answers that were given up before, as too few had come."""


@dataclass(frozen=True)
class RoundRecord:
    """One step of a run: a training round, a special round of a part, or the final adaptation."""

    step: int
    round: int
    kind: Kind
    owner: str
    cohort: tuple[int, ...]
    loss: float | None
    """Training loss over the cohort, weighted by rows."""
    bytes_up: int
    bytes_down: int
    seconds: float
    activities: Seconds
    scores: tuple[Score, ...]
    absent: Mapping[int, str] = field(default_factory=dict)
    """Client -> why its answer does not count."""
    rows: Mapping[int, int] = field(default_factory=dict)
    """Client -> training rows that it says it has: what its answer weighs."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the parts' `aggregate` left for the reader, by the part's name."""
    headline: Headline | None = None
    """The number of the run's curve, where this step has one."""
    privacy: PrivacySpent | None = None
    """What was told so far, with `privacy`."""

    def score(self, at: At) -> Score | None:
        """The score of this key, if it was taken in this step."""
        return next((score for score in self.scores if score.at == at), None)


@dataclass(frozen=True)
class UnmaskedSum:
    """A sum of masked uploads that the server asked its clients to unmask."""

    step: int
    clients: tuple[int, ...]
    """Whose uploads are in it."""


@dataclass(frozen=True)
class ClientDigests:
    """One client in one step, by sha256; empty where the client keeps nothing."""

    client: int
    message: str
    """What the server sent."""
    before: str
    """What the client kept before."""
    answer: str
    """What the client sent: tensors, number of rows, loss."""
    after: str
    """What the client keeps from there on."""


@dataclass(frozen=True)
class StepDigests:
    """One step of a run by its digests, and a link of their chain: it covers the line before it, so
    that no earlier line can be changed without changing all later ones."""

    step: int
    server_before: str
    server_after: str
    clients: tuple[ClientDigests, ...]
    """Those that answered, by id."""
    record: str
    """Of the step's line in the journal, without the time it took."""
    previous: str
    """The link before this one; of the first step, a digest of the run's settings."""
    link: str


@dataclass(frozen=True)
class Chosen:
    """What a protocol chose as a result, decided once when the run ends."""

    at: At
    metric: str
    select: str
    """The rule: last, best_val, best_test, ..."""
    average: Literal["uniform", "samples"]
    rounds: tuple[int, ...]
    """The rounds whose scores count."""
    value: Number
    """The number of the run."""
    std: Number
    """Over clients."""
    worst_decile: Number
    clients: tuple[int, ...]
    rows: tuple[int, ...]
    values: tuple[Number, ...]
    """Of each client."""

    def by_client(self) -> dict[int, float]:
        """Client -> value."""
        return dict(zip(self.clients, self.values, strict=True))


@dataclass(frozen=True)
class Summary:
    """A run that ended, in one object."""

    method: str
    result: Chosen
    newcomers: Chosen | None
    """Clients that never trained, after they joined; None where there were none."""
    protocol: str
    rounds: int
    """Training rounds that were run."""
    clients: int
    seed: int
    bytes_up: int
    bytes_down: int
    seconds: float
    activities: Seconds
    state_sha256: str
    partition_sha256: str
    run: str | None
    """The folder."""
    stopped: str | None = None
    """Why a watcher ended the training before its last round."""
    title: str | None = None
    """What the run is called: by default its method as it was written."""
    digest: str | None = None
    """Of the whole course of the run, the last link of its chain of digests: the same wherever and
    on whichever engine the run is repeated; None where it was not recorded."""
    privacy: PrivacySpent | None = None
    """What was told in all, with `privacy`."""

    @property
    def label(self) -> str:
        """What tables call the run."""
        return self.title or self.method

    @property
    def metric(self) -> str:
        """The metric that the number of the run is of."""
        return self.result.metric

    @property
    def value(self) -> float:
        """The number of the run, as its protocol defines it."""
        return self.result.value

    @property
    def accuracy(self) -> float:
        """The same: of most runs it is an accuracy."""
        return self.value

    @property
    def worst_decile(self) -> float:
        """Mean of the worst-served tenth of the clients."""
        return self.result.worst_decile


When = Literal["before", "after", "final", "both"]
"""The model as received, after the next local training, as adapted at the end; or before and after
in one line."""


@dataclass(frozen=True)
class Finding:
    """One diagnostic of one round, of one layer where it has one, in plain values."""

    round: int
    name: str
    snapshot: When
    layer: str | None
    data: str
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    """In the form the diagnostic declares (`fedloom.diagnose`), or `skipped` with the reason."""

    @property
    def skipped(self) -> str | None:
        """Why there is no number, if there is none."""
        return self.result.get("skipped")


@dataclass(frozen=True)
class SharedTensor:
    """Name, shape, type and bytes of one tensor that left a client."""

    name: str
    """slice/key"""
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True)
class SharedSet:
    """What one message brings to the server; written when something is shared for the first time
    and known by its number from there on."""

    number: int
    tensors: tuple[SharedTensor, ...]
    numbers: tuple[str, ...]
    """Names of the plain numbers beside the tensors: rows, loss, scores."""

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class SharedBy:
    """Who shared which set."""

    number: int
    """Of the set."""
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Reported:
    """Whose scores were reported."""

    at: At
    clients: tuple[int, ...]


@dataclass(frozen=True)
class LedgerStep:
    """Who shared what in one step."""

    step: int
    round: int
    kind: Kind
    owner: str
    shared: tuple[SharedBy, ...]
    scored: tuple[Reported, ...] = ()
    rows: Mapping[int, int] = field(default_factory=dict)
    """Client -> the training rows it stated."""
    counted: bool = True
    """False: too few answered and the step was given up; what came had left all the same."""


LedgerLine = SharedSet | LedgerStep

_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once for every kind: that takes longer than a hundred records."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


LATER_FIELDS = frozenset({"privacy"})
"""Left out of a record where they say nothing, so that records without them keep their digests."""


def dump(record: object) -> dict[str, Any]:
    """A record in JSON's types; NaN is left for whoever writes it."""
    plain: dict[str, Any] = _adapter(type(record)).dump_python(record, mode="json")
    return {k: v for k, v in plain.items() if v is not None or k not in LATER_FIELDS}


def load(kind: type[Kept], value: object, where: str) -> Kept:
    """The record that `dump` made; what is none becomes one sentence that says where it stands."""
    try:
        record: Kept = _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "the whole"
        name = getattr(kind, "__name__", str(kind))
        raise RunFolderError(
            f"{where} is not a {name} ({at}: {first['msg'].lower()}); restore the file"
        ) from None
    return record
