"""Ranks over data sets, Friedman's test and Nemenyi's critical difference, by hand and by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedloom.analysis import critical_difference, friedman, ranks
from fedloom.errors import BadInput


def test_friedman_by_hand() -> None:
    """Three data sets rank four methods 1 2 3 4, 1 2 4 3 and 2 1 3 4. Mean ranks are 4/3, 5/3,
    10/3, 11/3; their squares about 5/2 sum to 2 * (49 + 25) / 36 = 37/9; times 12 n / (k (k + 1)) =
    36 / 20 that is 7.4."""
    ranking = friedman([[0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.1, 0.2], [0.8, 0.9, 0.7, 0.6]])
    assert ranking.mean_ranks == pytest.approx((4 / 3, 5 / 3, 10 / 3, 11 / 3))
    assert ranking.chi2 == pytest.approx(7.4)
    assert (ranking.df, ranking.data_sets) == (3, 3)
    assert ranking.p == pytest.approx(0.06018, abs=1e-5)


def test_ties_are_corrected_as_scipy_does() -> None:
    scores = np.array([[3, 3, 1, 0], [2, 1, 1, 1], [5, 4, 4, 2], [1, 2, 3, 0]])
    ranking, theirs = friedman(scores), stats.friedmanchisquare(*scores.T)
    assert ranking.chi2 == pytest.approx(theirs.statistic)
    assert ranking.p == pytest.approx(theirs.pvalue)


def test_equal_scores_share_a_rank_and_are_no_evidence() -> None:
    assert ranks([[0.5, 0.5, 0.5], [0.1, 0.3, 0.3]]).tolist() == [[2, 2, 2], [3, 1.5, 1.5]]
    assert math.isnan(friedman([[1, 1, 1], [2, 2, 2]]).chi2)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_difference_by_the_table_of_q(methods: int, q: float) -> None:
    """Demsar (2006, Table 5a) prints q at 5 % for infinitely many degrees of freedom."""
    by_hand = q * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(by_hand, rel=1e-3)


def test_who_is_not_told_from_the_best() -> None:
    """Ten data sets in one order: the critical difference of four methods is 2.569 * sqrt(20 / 60)
    = 1.48, so that rank 2 is alike with rank 1 and ranks 3 and 4 are not."""
    ranking = friedman([[0.6, 0.9, 0.8, 0.7]] * 10)
    assert ranking.critical_difference == pytest.approx(1.483, abs=1e-3)
    assert ranking.alike_with_best() == (1, 2)


def test_too_little_to_rank_is_refused() -> None:
    with pytest.raises(BadInput, match="two data sets and three methods, not 1 and 3"):
        friedman([[1, 2, 3]])
