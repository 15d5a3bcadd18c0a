"""Is one method better than another, or was it the seed? Paired tests that fit how it was run.

`differences[s][i]` is the accuracy of method A less that of method B for client i in the runs with
seed s: same partition, initialisation, client sampling and test rows. Which test fits depends on
what a second seed shares with the first:

- runs whose `partition_sha256` agree have the same clients in every seed (*crossed*): both seeds
  and clients are drawn at random, each with an effect of its own;
- otherwise client 3 of one seed has nothing to do with client 3 of the next (*nested*): only the
  seeds' means can be compared.

A t test on all S x K values, or `signed_rank` on clients' means over seeds that share a shift, is
wrong: it raises false alarms in every second or fifth comparison instead of one in twenty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedloom.analysis.tables import Numbers, vector
from fedloom.errors import BadInput

Interval = tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """A method against another over seeds and clients; NaN where there is nothing to test."""

    mean: float
    """Of the seeds' means."""
    p: float
    """Two-sided. 0 if the difference is the same everywhere, NaN if it is 0 everywhere."""
    t: float
    df: float
    interval: Interval
    """95 %, of the same t test as p."""
    bootstrap: Interval
    """95 %, seeds and then clients drawn again. Too narrow with few seeds: see
    `bootstrap_interval`."""
    seeds: int
    clients: int
    """The fewest of any seed."""
    test: str
    """Which test was used, and why."""

    def interval_at(self, error_rate: float) -> Interval:
        """As `interval`, but wrong at this rate instead of 5 %: one of several that together are
        to be right takes the rate at which its comparison was tested (`holm_rates`)."""
        low, high = self.interval
        wider = float(stats.t.isf(error_rate / 2, self.df) / stats.t.isf(0.025, self.df))
        half = (high - low) / 2 * wider
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Estimate:
    """A mean with the variance of that mean, and how well the variance is known."""

    mean: Numbers
    variance: Numbers
    df: Numbers

    @property
    def t(self) -> Numbers:
        """In standard errors; infinite without variance, NaN if the mean is 0 besides."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.mean / np.sqrt(self.variance))

    @property
    def p(self) -> Numbers:
        """Two-sided, of the hypothesis that the mean is 0."""
        return np.asarray(2 * stats.t.sf(np.abs(self.t), self.df))


def compare(differences: Iterable[ArrayLike], same_partition: bool, *, seed: int = 0) -> Paired:
    """The test that fits the design, with the mean difference and its intervals.

    `seed` is that of the bootstrap.

    >>> test = compare([[0.02, 0.05], [0.01, 0.03], [0.03, 0.04]], same_partition=True)
    >>> round(test.mean, 3), round(test.p, 3)
    (0.03, 0.169)
    >>> test.test
    'crossed: two-way random effects over 3 seeds and 2 clients, because every seed has the same \
partition'
    """
    rows = _rows(differences, same_partition)
    seeds, clients = len(rows), min(map(len, rows))
    mean = float(np.mean([row.mean() for row in rows]))
    if seeds == 1:
        test = "none: one seed cannot tell the method from its seed; run at least three"
        nothing = (math.nan, math.nan)
        return Paired(mean, math.nan, math.nan, 0.0, nothing, nothing, 1, clients, test)
    if same_partition and clients > 1:
        estimate = two_way(np.stack(rows))
        test = (
            f"crossed: two-way random effects over {seeds} seeds and {clients} clients, because"
            " every seed has the same partition"
        )
    else:
        estimate = seed_means(np.array([row.mean() for row in rows]))
        why = "there is only one client" if same_partition else "every seed has its own partition"
        test = f"nested: paired t test on {seeds} seeds' means, because {why}"
    half = float(stats.t.isf(0.025, estimate.df) * np.sqrt(estimate.variance))
    return Paired(
        mean=mean,
        p=float(estimate.p),
        t=float(estimate.t),
        df=float(estimate.df),
        interval=(mean - half, mean + half),
        bootstrap=bootstrap_interval(rows, same_partition, seed=seed),
        seeds=seeds,
        clients=clients,
        test=test,
    )


def two_way(differences: Numbers) -> Estimate:
    """Random seeds crossed with random clients, [..., S, K]; S and K from 2.

    With mean squares of seeds, clients and the rest, the mean's variance is
    max(MS_s + MS_c - MS_e, MS_e) / (S K), with Satterthwaite's degrees of freedom. False alarms at
    5 % with S = 5, K = 20: about .05 with both effects, .04 with one, .01 with none.

    >>> float(two_way(np.array([[1.0, 2.0], [3.0, 5.0]])).variance)
    2.0625
    """
    d = np.asarray(differences, dtype=np.float64)
    s, k = d.shape[-2:]
    if s < 2 or k < 2:
        raise BadInput(f"two-way effects need two seeds and two clients, not {s} and {k}")
    mean = d.mean((-2, -1))
    by_seed, by_client = d.mean(-1), d.mean(-2)
    rest = d - by_seed[..., :, None] - by_client[..., None, :] + mean[..., None, None]
    ms_seed, ms_client = k * by_seed.var(-1, ddof=1), s * by_client.var(-1, ddof=1)
    free = (s - 1) * (k - 1)
    ms_rest = (rest**2).sum((-2, -1)) / free
    total = np.maximum(ms_seed + ms_client - ms_rest, ms_rest)
    total = _nothing_but_rounding(total, d, (-2, -1))
    weight = ms_seed**2 / (s - 1) + ms_client**2 / (k - 1) + ms_rest**2 / free
    df = np.divide(total**2, weight, out=np.full_like(total, s - 1.0), where=total > 0)
    return Estimate(mean, total / (s * k), df)


def seed_means(means: Numbers) -> Estimate:
    """The paired t test on seeds' mean differences, [..., S]: S - 1 degrees of freedom.

    >>> round(float(seed_means(np.array([0.01, 0.02, 0.03])).p), 3)
    0.074
    """
    m = np.asarray(means, dtype=np.float64)
    s = m.shape[-1]
    if s < 2:
        raise BadInput("a t test over seeds needs at least two seeds")
    spread = _nothing_but_rounding(np.asarray(m.var(-1, ddof=1)), m, (-1,))
    return Estimate(m.mean(-1), spread / s, np.full(m.shape[:-1], s - 1.0))


def _nothing_but_rounding(variance: Numbers, d: Numbers, axes: tuple[int, ...]) -> Numbers:
    """0 where equal differences vary in their last bits only."""
    return np.where(variance <= (1e-12 * np.abs(d).max(axes)) ** 2, 0.0, variance)


def bootstrap_interval(
    differences: Iterable[ArrayLike],
    same_partition: bool,
    *,
    draws: int = 4000,
    seed: int = 0,
) -> Interval:
    """95 % of the mean difference when seeds, and then clients, are drawn again.

    With the same partition the drawn clients are the same in all drawn seeds. Makes no assumption
    about the shape, but S seeds drawn from S vary too little: with S = 5, K = 20 and a seed effect
    it holds the truth in less than 92 % of cases. NaN with one seed.

    >>> low, high = bootstrap_interval([[0.1, 0.3], [0.2, 0.4]], same_partition=True)
    >>> round(low, 3), round(high, 3)
    (0.1, 0.4)
    """
    rows = _rows(differences, same_partition)
    if len(rows) == 1:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    drawn = _crossed_draws if same_partition else _nested_draws
    low, high = np.quantile(drawn(rows, draws, rng), [0.025, 0.975])
    return float(low), float(high)


def _crossed_draws(rows: list[Numbers], draws: int, rng: np.random.Generator) -> Numbers:
    d = np.stack(rows)
    s, k = d.shape
    seeds = rng.multinomial(s, np.full(s, 1 / s), size=draws)  # how often each is drawn
    clients = rng.multinomial(k, np.full(k, 1 / k), size=draws)
    means: Numbers = ((seeds @ d) * clients).sum(axis=1) / (s * k)
    return means


def _nested_draws(rows: list[Numbers], draws: int, rng: np.random.Generator) -> Numbers:
    chosen = rng.integers(len(rows), size=(draws, len(rows)))
    means = np.empty(chosen.shape)
    for s, row in enumerate(rows):
        k = len(row)
        times = rng.multinomial(k, np.full(k, 1 / k), size=int((chosen == s).sum()))
        means[chosen == s] = times @ row / k
    of_draws: Numbers = means.mean(axis=1)
    return of_draws


def _rows(differences: Iterable[ArrayLike], same_partition: bool) -> list[Numbers]:
    """One row per seed; only new partitions may have unlike numbers of clients."""
    rows = [vector(row, f"row {s} of the differences") for s, row in enumerate(differences)]
    if not rows:
        raise BadInput("differences need one row of clients for every seed")
    if same_partition and len({len(row) for row in rows}) > 1:
        raise BadInput(
            "the seeds have unlike numbers of clients, so their partitions differ; compare with"
            " same_partition=False"
        )
    return rows


# ------------------------------------------------------------------ over clients, over rows


@dataclass(frozen=True)
class Exact:
    """An exact two-sided test."""

    p: float
    n: int
    """Differences that are not 0, or rows on which the models disagree."""
    smallest: float
    """The least p that so many can give: above 5 %, no result could be significant."""


def signed_rank(differences: ArrayLike) -> Exact:
    """Wilcoxon's test over clients with the seeds as they are: better for new clients?

    Zeros are ranked and their ranks split evenly (`zsplit`); ties get mean ranks; p is exact in
    both cases, over all signs, up to 200 differences and from the normal law beyond. All 0: NaN.

    >>> signed_rank([1, 2, 3, 4, 5])
    Exact(p=0.0625, n=5, smallest=0.0625)
    """
    d = np.round(vector(differences, "differences"), 12)  # so that .9 - .8 equals .8 - .7
    n = int(np.count_nonzero(d))
    if n == 0:
        return Exact(math.nan, 0, 1.0)
    smallest = 2.0 ** (1 - n)
    if len(d) > 200:
        p = float(stats.wilcoxon(d, zero_method="zsplit", method="approx").pvalue)
        return Exact(p, n, smallest)
    ranks = np.rint(2 * stats.rankdata(np.abs(d))).astype(int)  # mean ranks come in halves
    law = np.zeros(int(ranks[d != 0].sum()) + 1)
    law[0] = 1.0
    for rank in ranks[d != 0]:
        raised = np.concatenate([np.zeros(rank), law[:-rank]])
        law = (law + raised) / 2
    positive, negative = int(ranks[d > 0].sum()), int(ranks[d < 0].sum())
    p = min(1.0, 2 * float(law[: min(positive, negative) + 1].sum()))
    return Exact(p, n, smallest)


def mcnemar(only_first: int, only_second: int) -> Exact:
    """One client, two models, same rows: rows that only the first, only the second gets right.

    No disagreement: p = 1.

    >>> round(mcnemar(12, 3).p, 4)
    0.0352
    """
    if only_first < 0 or only_second < 0:
        raise BadInput(f"counts are 0 or more, not {only_first} and {only_second}")
    n = only_first + only_second
    if n == 0:
        return Exact(1.0, 0, 1.0)
    return Exact(float(stats.binomtest(only_first, n).pvalue), n, 2.0 ** (1 - n))


def disagreements(first: ArrayLike, second: ArrayLike) -> tuple[int, int]:
    """Rows that only the first, only the second model gets right, from hits (1 or True) per row.

    >>> disagreements([1, 1, 0, 0], [1, 0, 1, 0])
    (1, 1)
    """
    a, b = vector(first, "first") > 0.5, vector(second, "second") > 0.5
    if len(a) != len(b):
        raise BadInput(f"the same rows are needed, but there are {len(a)} and {len(b)}")
    return int((a & ~b).sum()), int((~a & b).sum())


def holm(p: Sequence[float]) -> list[float]:
    """p values of several planned comparisons, raised so that 5 % holds for all together.

    A comparison without p (NaN) was planned too and counts.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1 or ((values < 0) | (values > 1)).any():
        raise BadInput(f"p values lie between 0 and 1, not {list(p)}")
    order = np.argsort(values)  # NaN last
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return [float(v) for v in adjusted]


def holm_rates(p: Sequence[float], level: float = 0.05) -> list[float]:
    """The error rate at which Holm's procedure tests each comparison: the smallest p at level/m,
    the next at level/(m - 1), ..., and from the first that is not rejected on all at its rate.

    An interval with this error rate leaves out 0 exactly where `holm` gives less than `level`.

    >>> [round(rate, 4) for rate in holm_rates([0.01, 0.04, 0.03])]
    [0.0167, 0.025, 0.025]
    """
    adjusted = holm(p)
    order = sorted(range(len(p)), key=lambda i: (math.isnan(p[i]), p[i]))
    rejected = sum(value < level for value in adjusted)
    rates = [0.0] * len(p)
    for rank, i in enumerate(order):
        rates[i] = level / (len(p) - min(rank, rejected))
    return rates
