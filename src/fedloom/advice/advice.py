"""What `fedloom advise` ends with: a method, the evidence for it, who would lose, the command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedloom.advice.check import Checked
from fedloom.advice.evidence import Evidence
from fedloom.advice.shortlist import LOCAL, Shortlist, describe
from fedloom.analysis.collaboration_gain import gain, plain_gain
from fedloom.core.metrics import Metric, metric
from fedloom.files import jsonable
from fedloom.launch.tables import OverSeeds
from fedloom.record import Chosen
from fedloom.tuning.command import run_command
from fedloom.tuning.result import TuneResult


@dataclass(frozen=True)
class Tested:
    """A method on test rows, which were opened once, after the choice."""

    method: str
    expression: str
    """With its best settings."""
    seeds: tuple[float, ...]
    """The number of each seed's run."""
    by_client: dict[int, float]
    """Mean over seeds."""
    rows: dict[int, int]
    """Test rows of each client."""

    @classmethod
    def of(cls, method: str, expression: str, results: Sequence[Chosen]) -> Tested:
        """A method of its runs, one for each seed."""
        first = results[0]
        values = [result.by_client() for result in results]
        return cls(
            method,
            expression,
            tuple(result.value for result in results),
            {cid: fmean(value[cid] for value in values) for cid in first.clients},
            dict(zip(first.clients, first.rows, strict=True)),
        )

    @property
    def mean(self) -> OverSeeds | None:
        """Over seeds."""
        return OverSeeds.of(self.seeds)


@dataclass(frozen=True)
class Loser:
    """A client that is better off alone than with the advised method, on its test rows."""

    client: str
    alone: float
    together: float
    clear: bool
    """Outside of what so few test rows make likely by chance; false where that is not known."""


@dataclass(frozen=True)
class Advice:
    """The whole of an advice."""

    checked: Checked = field(repr=False)
    listed: Shortlist
    tuning: TuneResult = field(repr=False)
    evidence: Evidence
    tested: tuple[Tested, ...]
    """The advised method first, then its rivals."""
    losers: tuple[Loser, ...]
    """Those that lose most first."""
    metric: str
    out: str | None

    @property
    def method(self) -> str:
        """The advised one, as it is on the list."""
        return self.evidence.advised

    @property
    def kind(self) -> str:
        """What kind of method that is."""
        return self.listed.kind(self.method)

    @property
    def expression(self) -> str:
        """The advised method with its best settings: give it to `fl.run`."""
        return self.expression_of(self.method)

    def expression_of(self, method: str) -> str:
        """A method of the list with its best settings."""
        return next(one.expression for one in self.tuning.methods if one.label == method)

    @property
    def command(self) -> str:
        """Trains with the advised method."""
        return run_command(self.expression, self.tuning.config)

    @property
    def sentence(self) -> str:
        """The recommendation in words."""
        evidence, of = self.evidence, metric(self.metric)
        chosen, best = evidence.of(self.method), evidence.of(evidence.best)
        scored = (
            f"{self.method} ({self.kind}): {of.shown(chosen.mean)} on validation rows, mean over"
            f" {evidence.clients} clients and {evidence.seeds} seeds"
        )
        if chosen is best:
            return f"{scored}, the best of {len(evidence.standings)} methods"
        apart = _apart(of, chosen.behind)
        return (
            f"{scored}; {evidence.best} has {of.shown(best.mean)}, but {apart} are no clear or no"
            f" worthwhile difference (p = {chosen.p:.2g}), and {self.method} is the simpler"
        )

    def as_json(self) -> dict[str, Any]:
        """In JSON's types, as `advice.json` holds it."""
        record = {
            "advised": {
                "method": self.method,
                "kind": self.kind,
                "expression": self.expression,
                "command": self.command,
                "why": self.sentence,
            },
            "metric": self.metric,
            "shortlist": describe(self.listed),
            "left_out": [{"method": m, "why": why} for m, why in self.listed.left_out],
            "validation": self.evidence.as_json(),
            "tested": [
                {
                    "method": one.method,
                    "expression": one.expression,
                    "seeds": one.seeds,
                    "mean": one.mean and one.mean.mean,
                    "clients": {
                        self.checked.clients[cid].name: v for cid, v in one.by_client.items()
                    },
                }
                for one in self.tested
            ],
            "losers": [vars(one) for one in self.losers],
            "trials": self.tuning.trials,
            "rounds": self.tuning.config.rounds,
            "data": self.checked.as_json(),
        }
        return dict(jsonable(record))

    def __repr__(self) -> str:
        return f"Advice({self.sentence})"


def _apart(of: Metric, behind: float) -> str:
    return f"{100 * behind:.1f} points" if of.share else f"{behind:.3g}"


def losers(tested: Sequence[Tested], advised: str, names: Sequence[str], of: Metric) -> list[Loser]:
    """The clients that do worse with the advised method than alone, the greatest loss first."""
    by_name = {one.method: one for one in tested}
    if advised == LOCAL or LOCAL not in by_name:
        return []
    alone, together = by_name[LOCAL].by_client, by_name[advised].by_client
    clients = [cid for cid in together if cid in alone]
    rows = [by_name[advised].rows[cid] for cid in clients]
    first, second = [together[cid] for cid in clients], [alone[cid] for cid in clients]
    if of.name == "accuracy":
        gained = gain(first, second, rows)
    else:
        gained = plain_gain([of.sign * (a - b) for a, b in zip(first, second, strict=True)], rows)
    losing = [i for i, change in enumerate(gained.gains) if change < 0]
    losing.sort(key=lambda i: gained.gains[i])
    return [
        Loser(names[clients[i]], second[i], first[i], -gained.gains[i] > 1.96 * gained.errors[i])
        for i in losing
    ]
