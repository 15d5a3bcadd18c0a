"""How evenly clients are served, and how uneven equal clients would look by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedloom.analysis.tables import Numbers, row_counts, same_length, shares
from fedloom.errors import BadInput
from fedloom.record import Spread


@dataclass(frozen=True)
class Fairness:
    """Accuracy over the clients of one round.

    `mean`, `weighted`, `std` (over K, not K - 1) and `worst_decile` are those of every record in a
    journal (`record.Spread`).
    """

    clients: int
    mean: float
    weighted: float
    std: float
    worst_decile: float
    best_decile: float
    quartiles: tuple[float, float, float]
    worst: float
    worst_interval: tuple[float, float]
    """95 % of Wilson for that client alone."""
    worst_by_chance: float
    """Expected lowest accuracy if all clients were served equally well."""
    jain: float
    """(sum a)^2 / (K sum a^2): 1 is even, 1/K is all for one client."""
    gini: float
    entropy: float
    """Of a / sum a, over ln K: 1 is even."""
    noise_variance: float
    """See the function of that name."""
    true_variance: float
    """Sample variance less that: unbiased, so below 0 at times where clients hardly differ."""

    @property
    def true_std(self) -> float:
        """Spread of the clients themselves; 0 where noise explains all of it."""
        return math.sqrt(max(self.true_variance, 0.0)) if self.clients > 1 else math.nan


def fairness(accuracy: ArrayLike, n: ArrayLike) -> Fairness:
    """Accuracies of clients with their numbers of test rows: `clients` and `n` of a journal.

    Accuracies that are all 0 are even: Jain 1, Gini 0, entropy 1.

    >>> fair = fairness([0.9, 0.8, 0.7, 0.6], [50, 50, 50, 50])
    >>> round(fair.std, 4), round(fair.jain, 5), round(fair.gini, 5), round(fair.entropy, 5)
    (0.1118, 0.97826, 0.08333, 0.99194)
    """
    a, rows = shares(accuracy, "accuracy"), row_counts(n)
    same_length(accuracy=a, n=rows)
    common = Spread.of(a.tolist(), rows.tolist())
    upside_down = Spread.of((-a).tolist(), rows.tolist())
    low, middle, high = (float(q) for q in np.quantile(a, [0.25, 0.5, 0.75]))
    lowest = int(a.argmin())
    noise = noise_variance(a, rows)
    return Fairness(
        clients=len(a),
        mean=common.mean,
        weighted=common.weighted,
        std=common.std,
        worst_decile=common.worst_decile,
        best_decile=-upside_down.worst_decile,
        quartiles=(low, middle, high),
        worst=float(a[lowest]),
        worst_interval=_wilson(a[lowest], rows[lowest]),
        worst_by_chance=lowest_by_chance(common.weighted, rows),
        jain=_jain(a),
        gini=_gini(a),
        entropy=_entropy(a),
        noise_variance=noise,
        true_variance=float(a.var(ddof=1)) - noise if len(a) > 1 else math.nan,
    )


def noise_variance(accuracy: ArrayLike, n: ArrayLike) -> float:
    """What finite test sets add to the variance over clients: the mean of p (1 - p)/n.

    E[a (1 - a)] = p (1 - p) (n - 1)/n, so a (1 - a)/(n - 1) has that mean; a client with a single
    row says nothing about its own noise: NaN.

    >>> noise_variance([0.5, 1.0], [26, 26])
    0.005
    """
    a, rows = shares(accuracy, "accuracy"), row_counts(n)
    same_length(accuracy=a, n=rows)
    return float((a * (1 - a) / (rows - 1)).mean()) if rows.min() > 1 else math.nan


def lowest_by_chance(p: float, n: ArrayLike) -> float:
    """Expected lowest accuracy of clients that all have accuracy p, from n test rows each.

    E min = integral over x of the probability that every client has at least x; on a grid, wrong
    by less than 1/4000.

    >>> round(lowest_by_chance(0.8, [50] * 20), 3)
    0.69
    """
    if not 0.0 <= p <= 1.0:
        raise BadInput(f"an accuracy lies between 0 and 1, not at {p}")
    sizes, clients = np.unique(row_counts(n), return_counts=True)
    x = (np.arange(2000) + 0.5) / 2000
    needed = np.ceil(np.multiply.outer(sizes, x))
    log_all = clients[:, None] * stats.binom.logsf(needed - 1, sizes[:, None], p)
    return float(np.exp(log_all.sum(axis=0)).mean())


def _wilson(a: float, rows: float) -> tuple[float, float]:
    interval = stats.binomtest(round(a * rows), int(rows)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def _jain(a: Numbers) -> float:
    return float(a.sum() ** 2 / (len(a) * (a**2).sum())) if a.any() else 1.0


def _gini(a: Numbers) -> float:
    """Mean difference of all pairs over twice the mean, from sorted values."""
    if not a.any():
        return 0.0
    k = len(a)
    places = 2 * np.arange(1, k + 1) - k - 1
    return float((places * np.sort(a)).sum() / (k * a.sum()))


def _entropy(a: Numbers) -> float:
    if len(a) == 1 or not a.any():
        return 1.0
    return float(stats.entropy(a) / math.log(len(a)))
