"""Which method, by scores on validation rows that are paired over clients and seeds.

The advice is for these clients and no others, so that clients are not drawn at random: each has a
difference of its own, and what is random around it are a run's seed and the rows that were held
out. The noise is what differences of equal client and seed vary by from seed to seed: of all
clients together where seeds do not move all clients at once, otherwise of the seeds' means (pooled
unless an F test at 25 % objects, the usual rule). Where every seed holds out other rows, the
training rows of two seeds overlap and the noise of rows is less independent than it looks: its
part of the variance is then that of the corrected resampled t test (Nadeau and Bengio, 2003).

The simplest method wins that is not clearly worse than the best: a method counts as worse where the
test says so, which has one side, because the best is ahead already, and where the difference would
matter to anybody. There is no correction for how many methods were tried, which would make the
simplest win the more often, the more others there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedloom.analysis.significance import Estimate, seed_means
from fedloom.core.metrics import Metric
from fedloom.errors import BadInput

LEVEL = 0.05
"""Chance of calling a method worse that is as good."""
SHARE_MARGIN = 0.005
"""Half a point of a share, such as accuracy: less is worth no more complicated method."""
POOLING = 0.25
"""p of an effect that seeds have on all clients at once, below which noise is not pooled."""
RELATIVE_MARGIN = 0.01
"""Of other metrics, this share of the best method's value."""
Values = Mapping[int, float]
"""Client -> value."""


@dataclass(frozen=True)
class Standing:
    """One method beside the best, on validation rows."""

    method: str
    mean: float
    """Over seeds and clients."""
    behind: float
    """The best method's mean less this one's, so that more is worse whatever the metric."""
    low: float
    high: float
    """95 % interval of `behind`; NaN of the best itself."""
    p: float
    """One-sided, of a method that is not behind being as far behind; NaN of the best itself."""
    worse: bool
    """Clearly, and by enough to matter."""


@dataclass(frozen=True)
class Evidence:
    """All methods, simplest first, and which of them is advised."""

    standings: tuple[Standing, ...]
    best: str
    """Of the highest mean."""
    advised: str
    """The simplest that is not worse than the best."""
    test: str
    """Which test, in words."""
    seeds: int
    clients: int
    """Whose values are defined in every run."""
    margin: float

    def of(self, method: str) -> Standing:
        """The standing of a method."""
        return next(one for one in self.standings if one.method == method)

    def as_json(self) -> dict[str, Any]:
        """In JSON's types, but for NaN."""
        return {
            "best": self.best,
            "advised": self.advised,
            "test": self.test,
            "seeds": self.seeds,
            "clients": self.clients,
            "margin": self.margin,
            "methods": [vars(one) for one in self.standings],
        }


def weigh(scores: Mapping[str, Sequence[Values]], of: Metric, held_out: float = 0.0) -> Evidence:
    """The evidence of each method's values, one mapping for each seed; methods come simplest first.

    `held_out` is how many rows a seed holds out for each that it trains on, where every seed holds
    out other ones; 0: all seeds are scored on the same. A method without values broke down in some
    run, and is out.

    >>> from fedloom.core.metrics import metric
    >>> seeds = [{0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.91, 1: 0.8, 2: 0.7}, {0: 0.9, 1: 0.81, 2: 0.7}]
    >>> better = [{c: v + 0.001 for c, v in seed.items()} for seed in seeds]
    >>> weigh({"plain": seeds, "clever": better}, metric("accuracy")).advised
    'plain'
    """
    tables = _tables(scores, of)
    best = max(tables, key=lambda method: tables[method].mean())
    behind = {
        method: _behind(tables[best] - table, held_out)
        for method, table in tables.items()
        if method != best
    }
    top = float(tables[best].mean())
    margin = SHARE_MARGIN if of.share else RELATIVE_MARGIN * abs(top)
    standings = tuple(
        _standing(method, of.sign * float(table.mean()), behind.get(method), margin)
        for method, table in tables.items()
    )
    advised = next(one.method for one in standings if not one.worse)
    seeds, clients = tables[best].shape
    words = f"one-sided paired t test over {seeds} seeds of {clients} clients"
    if held_out:
        words += ", corrected for training rows that seeds have in common"
    return Evidence(standings, best, advised, words, seeds, clients, margin)


def _behind(differences: np.ndarray, held_out: float) -> Estimate:
    """The mean of differences [seeds, clients], whose seeds are random and clients are not."""
    seeds, clients = differences.shape
    by_seed = seed_means(differences.mean(axis=1))
    of_seeds = float(by_seed.variance) * seeds * clients  # the mean square of seeds
    if clients == 1:
        variance = of_seeds * (1 + seeds * held_out) / seeds
        return Estimate(by_seed.mean, np.asarray(variance), by_seed.df)
    of_all = float(differences.var(axis=0, ddof=1).mean())  # of seeds and rows together
    free = (seeds - 1) * (clients - 1)
    of_rows = max(0.0, (clients * of_all - of_seeds) / (clients - 1))
    ratio = of_seeds / of_rows if of_rows > 0 else math.inf
    df = by_seed.df
    if stats.f.sf(ratio, seeds - 1, free) > POOLING:
        of_seeds = of_rows = of_all
        df = np.asarray(clients * (seeds - 1.0))
    variance = (of_seeds + seeds * held_out * of_rows) / (seeds * clients)
    return Estimate(by_seed.mean, np.asarray(variance), df)


def _tables(scores: Mapping[str, Sequence[Values]], of: Metric) -> dict[str, np.ndarray]:
    """Values [seeds, clients] of every method that has all, turned so that more is better, for the
    clients whose metric is defined in every run."""
    whole = {method: seeds for method, seeds in scores.items() if all(seeds)}
    if not whole:
        raise BadInput("the training of every method broke down; try a smaller learning rate")
    runs = [values for seeds in whole.values() for values in seeds]
    clients = [
        cid
        for cid in sorted(runs[0])
        if all(not math.isnan(values.get(cid, math.nan)) for values in runs)
    ]
    if not clients:
        raise BadInput(
            f"no client has validation rows on which {of.name} is defined in every run; choose a"
            " split with more validation rows, or another metric"
        )
    return {
        method: of.sign * np.array([[values[cid] for cid in clients] for values in seeds])
        for method, seeds in whole.items()
    }


def _standing(method: str, mean: float, behind: Estimate | None, margin: float) -> Standing:
    if behind is None:
        return Standing(method, mean, 0.0, math.nan, math.nan, math.nan, False)
    apart, p = float(behind.mean), float(stats.t.sf(behind.t, behind.df))
    if math.isnan(p):
        p = 1.0  # differences that are 0 everywhere have no p, and are no difference
    half = float(stats.t.isf(0.025, behind.df) * np.sqrt(behind.variance))
    return Standing(
        method, mean, apart, apart - half, apart + half, p, p < LEVEL and apart > margin
    )
