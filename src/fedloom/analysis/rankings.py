"""Many methods over several data sets: mean ranks, and whether they differ by more than chance.

`scores[d][m]` is the score of method m on data set d, the higher the better. A data set counts
once, however many seeds its scores are means of: runs on the same data are no independent blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedloom.analysis.tables import Numbers, table
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Ranking:
    """Methods ranked over data sets."""

    mean_ranks: tuple[float, ...]
    """Of each method; 1 is the best."""
    chi2: float
    """Friedman's statistic, corrected for ties; NaN if all scores of every data set are equal."""
    df: int
    p: float
    """Of the hypothesis that all methods are alike, by the chi-squared law."""
    critical_difference: float
    """Nemenyi's: two methods whose mean ranks differ by less are not told apart."""
    data_sets: int

    def alike_with_best(self) -> tuple[int, ...]:
        """Places of the methods that these data sets do not tell from the best one, best first."""
        best = min(self.mean_ranks)
        within = [
            m for m, rank in enumerate(self.mean_ranks) if rank - best < self.critical_difference
        ]
        return tuple(sorted(within, key=lambda m: self.mean_ranks[m]))


def ranks(scores: ArrayLike) -> Numbers:
    """Ranks within each data set, [D, M]; 1 is the highest score, equal scores share their mean.

    >>> ranks([[0.9, 0.5, 0.9]]).tolist()
    [[1.5, 3.0, 1.5]]
    """
    cells = table(scores, "scores")
    ranked: Numbers = stats.rankdata(-cells, axis=1)
    return ranked


def friedman(scores: ArrayLike, level: float = 0.05) -> Ranking:
    """Friedman's test over data sets, and Nemenyi's critical difference at `level`.

    >>> ranking = friedman([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.9, 0.7, 0.8]])
    >>> [round(rank, 2) for rank in ranking.mean_ranks], round(ranking.chi2, 2)
    ([1.0, 2.33, 2.67], 4.67)
    """
    cells = table(scores, "scores")
    n, k = cells.shape
    if n < 2 or k < 3:
        raise BadInput(
            f"Friedman's test needs two data sets and three methods, not {n} and {k}; leave it out"
        )
    ranked = ranks(cells)
    mean_ranks = ranked.mean(axis=0)
    # Without ties the variance of a row's ranks is k (k + 1) / 12, and this is the textbook's
    # 12 n / (k (k + 1)) * sum (R - (k + 1) / 2)^2; ties make it smaller.
    variance = ranked.var(axis=1, ddof=1).mean()
    spread = float(n * ((mean_ranks - (k + 1) / 2) ** 2).sum())
    chi2 = spread / float(variance) if variance > 0 else math.nan
    return Ranking(
        tuple(float(rank) for rank in mean_ranks),
        chi2,
        k - 1,
        float(stats.chi2.sf(chi2, k - 1)),
        critical_difference(k, n, level),
        n,
    )


def critical_difference(methods: int, data_sets: int, level: float = 0.05) -> float:
    """Nemenyi's: q * sqrt(k (k + 1) / (6 n)), q of the studentized range over sqrt(2).

    >>> round(critical_difference(5, 30), 2)
    1.11
    """
    q = float(stats.studentized_range.isf(level, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * data_sets))
