"""The tests raise false alarms as often as they say, and small cases are worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedloom.analysis.significance import (
    bootstrap_interval,
    compare,
    disagreements,
    holm,
    holm_rates,
    mcnemar,
    seed_means,
    signed_rank,
    two_way,
)
from fedloom.errors import BadInput

S, K, EFFECT = 5, 20, 0.608
"""Seeds, clients, and the standard deviation of an effect beside unit noise. diagnostics.md does
not say how large its effects are; its seven rates hold within .01 from .600 to .617, so this is a
fit of one number to seven, not a second source for them."""


def worlds(seed_effect: float, client_effect: float, count: int = 40_000) -> np.ndarray:
    """Differences [count, S, K] of two methods that are equally good."""
    rng = np.random.default_rng([seed_effect > 0, client_effect > 0])
    noise = rng.standard_normal((count, S, K))
    by_seed = seed_effect * rng.standard_normal((count, S, 1))
    return noise + by_seed + client_effect * rng.standard_normal((count, 1, K))


def alarms(p: np.ndarray) -> float:
    return float((p < 0.05).mean())


# ------------------------------------------------------------------ false alarms


@pytest.mark.parametrize(
    ("seed_effect", "client_effect", "rate"),
    [(EFFECT, 0, 0.051), (0, EFFECT, 0.033), (EFFECT, EFFECT, 0.053), (0, 0, 0.015)],
)
def test_two_way_alarms(seed_effect, client_effect, rate):
    """40,000 worlds know a rate of 5 % to .001."""
    rate = alarms(two_way(worlds(seed_effect, client_effect)).p)
    assert rate == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize(("effects", "rate"), [((EFFECT, 0), 0.43), ((0, EFFECT), 0.18)])
def test_pooling_all_values_is_wrong(effects, rate):
    """t on all S x K values: with v = .37 the variance of the mean is (v/5 + 1/100) under a seed
    effect, but it is taken for about (1 + .8 v)/100."""
    pooled = worlds(*effects, 100_000).reshape(-1, S * K)
    assert alarms(stats.ttest_1samp(pooled, 0, axis=1).pvalue) == pytest.approx(rate, abs=0.01)


def test_ranks_of_clients_are_wrong_if_seeds_share_a_shift():
    """Clients' means over seeds all carry the seeds' mean shift: .47. Without a shift: .05. Scipy
    ranks many worlds at once; `signed_rank` has the same p."""
    for effects, rate in (((EFFECT, 0), 0.47), ((0, EFFECT), 0.05)):
        clients = worlds(*effects, 60_000).mean(axis=1)
        p = stats.wilcoxon(clients, axis=1, method="exact").pvalue
        assert alarms(p) == pytest.approx(rate, abs=0.01)
        assert [signed_rank(row).p for row in clients[:100]] == pytest.approx(p[:100])


def test_seed_means_fit_new_partitions_and_no_others():
    """Clients drawn anew in every seed: 5 %. Clients that are the same in every seed, with an
    effect: S means share one draw of clients, 17 to 18 %."""
    rng = np.random.default_rng(5)
    own = worlds(EFFECT, 0) + EFFECT * rng.standard_normal((40_000, S, K))
    assert alarms(seed_means(own.mean(axis=2)).p) == pytest.approx(0.05, abs=0.005)
    shared = worlds(0, EFFECT)
    assert alarms(seed_means(shared.mean(axis=2)).p) == pytest.approx(0.175, abs=0.01)


def test_the_t_interval_holds_what_the_bootstrap_does_not():
    """Under a seed effect, 95 % of t intervals hold the truth, 0; of bootstrap intervals, from
    five seeds, fewer than 92 %. `interval` is outside of 0 where p < .05, see below."""
    d = worlds(EFFECT, 0, 500)
    assert alarms(two_way(d).p) == pytest.approx(0.05, abs=0.025)
    drawn = [bootstrap_interval(one, same_partition=True, draws=500) for one in d]
    held = np.mean([low <= 0 <= high for low, high in drawn])
    assert 0.84 < held < 0.92


# ------------------------------------------------------------------ by hand


def test_two_way_by_hand():
    """[[1, 2], [3, 5]]: mean 2.75; seeds 1.5 and 4 (variance 3.125, MS 2 x 3.125 = 6.25); clients
    2 and 3.5 (1.125, MS 2.25); residuals all +-.25 (MS .25/1). Variance of the mean
    (6.25 + 2.25 - .25)/4 = 2.0625; df 8.25^2/(6.25^2 + 2.25^2 + .25^2) = 1.54031."""
    estimate = two_way(np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert float(estimate.mean) == 2.75
    assert float(estimate.variance) == 2.0625
    assert float(estimate.df) == pytest.approx(1.54031, abs=1e-5)
    assert float(estimate.t) == pytest.approx(2.75 / math.sqrt(2.0625))


def test_variance_never_falls_below_the_residual():
    """[[1, -1], [-1, 1]]: no effects, residual SS 4, so MS_s + MS_c - MS_e = -4; MS_e = 4 it is:
    4/4 = 1."""
    estimate = two_way(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert float(estimate.variance) == 1.0
    assert float(estimate.p) == 1.0


@pytest.mark.parametrize(("seeds", "critical"), [(3, 4.30), (5, 2.78)])
def test_seed_means_have_few_degrees_of_freedom(seeds, critical):
    """|t| above 4.30 with three seeds, 2.78 with five. m +- spread has t = sqrt(S) m / sd."""
    base = np.arange(seeds) - (seeds - 1) / 2
    unit = base / base.std(ddof=1) * math.sqrt(seeds)  # standard error 1
    assert float(seed_means(unit + critical + 0.01).p) < 0.05
    assert float(seed_means(unit + critical - 0.01).p) > 0.05


def test_compare_chooses():
    """The same numbers: matched clients or only seeds' means 1.5 and 4 (df 1,
    t = 2.75/(2.5/2) = 2.2, p = 1 - 2 atan(2.2)/pi = .27156)."""
    d = [[1.0, 2.0], [3.0, 5.0]]
    crossed, nested = compare(d, same_partition=True), compare(d, same_partition=False)
    assert crossed.test.startswith("crossed: two-way random effects over 2 seeds and 2 clients")
    assert "same partition" in crossed.test
    assert crossed.p == float(two_way(np.array(d)).p)
    assert nested.test == (
        "nested: paired t test on 2 seeds' means, because every seed has its own partition"
    )
    assert nested.t == pytest.approx(2.2)
    assert nested.p == pytest.approx(1 - 2 * math.atan(2.2) / math.pi)
    assert nested.df == 1.0
    assert crossed.mean == nested.mean == 2.75


def test_interval_and_p_say_the_same():
    """The edge of the interval is where p is 5 %: shifted by its low end, p = .05."""
    d = worlds(EFFECT, EFFECT, 1)[0] + 1.0
    for same in (True, False):
        test = compare(d, same)
        low, high = test.interval
        assert compare(d - low, same).p == pytest.approx(0.05)
        assert (low + high) / 2 == pytest.approx(test.mean)


def test_seeds_with_unlike_numbers_of_clients():
    """Seeds weigh alike: (1 + 3)/2, not (1 + 3 + 3 + 3)/4."""
    test = compare([[1.0], [3.0, 2.0, 4.0]], same_partition=False)
    assert test.mean == 2.0
    assert test.clients == 1
    with pytest.raises(BadInput, match="same_partition=False"):
        compare([[1.0], [3.0, 2.0]], same_partition=True)


def test_exchanging_methods_changes_the_sign_alone():
    d = worlds(EFFECT, EFFECT, 1)[0]
    for same in (True, False):
        one, other = compare(d, same), compare(-d, same)
        assert (one.mean, one.t) == pytest.approx((-other.mean, -other.t))
        assert one.p == pytest.approx(other.p)


def test_order_of_seeds_and_clients_does_not_matter():
    d = worlds(EFFECT, EFFECT, 1)[0]
    assert compare(d, True).p == pytest.approx(compare(d[::-1, ::-1], True).p)


# ------------------------------------------------------------------ nothing to test


@pytest.mark.parametrize("same", [True, False])
def test_the_same_difference_everywhere(same):
    """.1 + .2 - .3 is not 0 in floating point: last bits are not a variance."""
    test = compare([[0.3, 0.1 + 0.2], [0.1 + 0.2, 0.3]], same)
    assert test.p == 0.0
    assert math.isinf(test.t)
    assert test.interval == pytest.approx((0.3, 0.3))
    assert test.bootstrap == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize("same", [True, False])
def test_no_difference_anywhere(same):
    test = compare(np.zeros((3, 4)), same)
    assert math.isnan(test.p)
    assert test.mean == 0.0
    assert test.interval == (0.0, 0.0)


@pytest.mark.parametrize("same", [True, False])
def test_one_seed(same):
    test = compare([[0.1, 0.2]], same)
    assert test.test.startswith("none: one seed")
    assert test.mean == pytest.approx(0.15)
    assert math.isnan(test.p)
    assert math.isnan(test.interval[0])
    assert math.isnan(test.bootstrap[1])
    assert math.isnan(bootstrap_interval([[0.1, 0.2]], same)[0])


def test_one_client():
    """Nothing to cross: the t test on three values .01, .02, .03 (t = .02 sqrt(3)/.01)."""
    test = compare([[0.01], [0.02], [0.03]], same_partition=True)
    assert "only one client" in test.test
    assert test.t == pytest.approx(2 * math.sqrt(3))


# ------------------------------------------------------------------ bootstrap


def test_bootstrap_draws_clients_together_or_apart():
    """Two clients, -1 and +1 in every seed, 8 seeds. Drawn together, both are the same one in
    half of the draws: the interval is [-1, 1]. Drawn in every seed apart, the mean of 8 seeds has
    the variance 1/16: +-1.96/4 is about +-.5."""
    d = np.tile([-1.0, 1.0], (8, 1))
    assert bootstrap_interval(d, same_partition=True) == (-1.0, 1.0)
    low, high = bootstrap_interval(d, same_partition=False)
    assert (low, high) == pytest.approx((-0.5, 0.5), abs=0.13)


def test_bootstrap_draws_seeds():
    """Seeds 0 and 1 without spread inside: the mean is 0, 1/2 or 1."""
    for same in (True, False):
        assert bootstrap_interval([[0.0, 0.0], [1.0, 1.0]], same) == (0.0, 1.0)


def test_bootstrap_is_seeded():
    d = worlds(0, 0, 1)[0]
    assert bootstrap_interval(d, True, seed=1) == bootstrap_interval(d, True, seed=1)
    assert bootstrap_interval(d, True, seed=1) != bootstrap_interval(d, True, seed=2)


# ------------------------------------------------------------------ ranks


@pytest.mark.parametrize(("n", "p"), [(3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_signed_rank_all_positive(n, p):
    """Of 2^n signs two are as extreme: five seeds can never reach 5 %, six can."""
    exact = signed_rank(range(1, n + 1))
    assert exact.p == exact.smallest == p
    assert exact.n == n


def test_signed_rank_agrees_with_scipy_without_ties():
    for n in (1, 4, 11, 30):
        d = np.random.default_rng(n).normal(0.4, 1, n)
        assert signed_rank(d).p == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)


def test_signed_rank_with_ties_is_exact():
    """Five differences of .1: ranks 3 each, still two of 32 signs; the normal law would say .025.
    .9 - .8 and .4 - .3 are the same difference but for their last bits: one of five equals is
    negative, so 1 + 5 of 32 signs have a sum so small: p = 12/32."""
    assert signed_rank([0.1] * 5).p == 0.0625
    assert signed_rank([0.9 - 0.8, 0.3 - 0.2, -(0.4 - 0.3), 0.6 - 0.5, 0.7 - 0.6]).p == 0.375


def test_signed_rank_splits_zeros():
    """0, 1, 2, -3: ranks 1 (split), 2, 3, 4. Negative 4 against positive 5; among the 8 sums of
    subsets of {2, 3, 4} (0 2 3 4 5 6 7 9) four are at most 4: p = 2 x 4/8 = 1. 0, 1, 2, 3: only
    the empty one: 2/8; the zero counts for nothing here."""
    assert signed_rank([0, 1, 2, -3]).p == 1.0
    exact = signed_rank([0, 1, 2, 3])
    assert (exact.p, exact.n, exact.smallest) == (0.25, 3, 0.25)


def test_signed_rank_keeps_the_rank_of_zeros():
    """0, 0, 1, -2 with 3, 4 (ranks 1.5 1.5 3 4 5 6): negative 4. Subsets of {3, 4, 5, 6} that sum
    to 4 or less: empty, {3}, {4}: p = 2 x 3/16. With zeros dropped the ranks are 1 2 3 4,
    negative 2, and again empty, {1}, {2}. With -3 for -2 and 2 for 3 (negative 5): empty, {3},
    {4}, {5}: 8/16; dropped (negative 3): empty, {1}, {2}, {3}, {1, 2}: 10/16."""
    assert signed_rank([0, 0, 1, -2, 3, 4]).p == 0.375
    assert signed_rank([0, 0, 1, 2, -3, 4]).p == 0.5


def test_signed_rank_beyond_the_exact_range():
    """At 200 exact, at 201 normal: the same law to two digits."""
    d = np.random.default_rng(0).normal(0.12, 1, 201)
    exact, normal = signed_rank(d[:200]).p, signed_rank(d).p
    expected = stats.wilcoxon(d[:200], method="approx").pvalue
    assert exact == pytest.approx(expected, rel=0.02)
    assert normal == pytest.approx(stats.wilcoxon(d, method="approx").pvalue)


def test_signed_rank_of_nothing():
    exact = signed_rank([0.0, 0.0])
    assert math.isnan(exact.p)
    assert exact.n == 0


# ------------------------------------------------------------------ rows, and several methods


def test_mcnemar():
    """12 against 3: 2 x (1 + 15 + 105 + 455)/2^15 = .03516."""
    assert mcnemar(12, 3).p == pytest.approx(1152 / 2**15)
    assert mcnemar(3, 12).p == mcnemar(12, 3).p
    assert mcnemar(5, 5).p == 1.0
    assert mcnemar(0, 0).p == 1.0
    assert mcnemar(5, 0).p == mcnemar(5, 0).smallest == 0.0625
    with pytest.raises(BadInput, match="counts are 0 or more"):
        mcnemar(-1, 2)


def test_disagreements():
    """Rows: both, only first, only first, only second, neither."""
    assert disagreements([1, 1, 1, 0, 0], [True, False, False, True, False]) == (2, 1)
    with pytest.raises(BadInput, match="there are 2 and 1"):
        disagreements([1, 0], [1])


def test_holm():
    """Sorted .01 x 4, .02 x 3, .03 x 2, .9 x 1: .04, .06, .06, .9; in the order given."""
    assert holm([0.02, 0.9, 0.01, 0.03]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_holm_counts_what_was_planned():
    """Two comparisons, one without p: the other is doubled all the same."""
    untested, doubled = holm([float("nan"), 0.02])
    assert math.isnan(untested)
    assert doubled == 0.04


def test_holm_tests_each_at_a_rate_of_its_own():
    """Sorted .01, .02, .03, .9 at .05/4 and, .02 not being below .05/3, all others at .05/3."""
    assert holm_rates([0.02, 0.9, 0.01, 0.03]) == pytest.approx(
        [0.05 / 3, 0.05 / 3, 0.0125, 0.05 / 3]
    )
    assert holm_rates([0.001, 0.002]) == pytest.approx([0.025, 0.05])
    assert holm_rates([float("nan"), 0.02]) == pytest.approx([0.05, 0.025])
    assert holm_rates([]) == []


def test_intervals_at_those_rates_agree_with_holm():
    """Whatever the differences: an interval leaves out 0 where, and only where, p is below 5 %."""
    rng = np.random.default_rng(0)
    verdicts = set()
    for _ in range(200):
        effects = 0.02 * rng.standard_normal(4)
        tests = [compare(rng.normal(e, 0.02, (4, 6)), same_partition=True) for e in effects]
        p = [test.p for test in tests]
        for test, raised, rate in zip(tests, holm(p), holm_rates(p), strict=True):
            low, high = test.interval_at(rate)
            assert (low > 0 or high < 0) == (raised < 0.05)
            verdicts.add((test.p < 0.05, raised < 0.05))
    assert (True, False) in verdicts  # where the interval of a single test would disagree
    assert tests[0].interval_at(0.05) == pytest.approx(tests[0].interval)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: compare([], True), "one row of clients for every seed"),
        (lambda: compare([[0.1, float("nan")]], True), "row 0 of the differences"),
        (lambda: compare([[]], False), "at least one finite number"),
        (lambda: two_way(np.zeros((1, 4))), "two seeds and two clients, not 1 and 4"),
        (lambda: seed_means(np.zeros(1)), "at least two seeds"),
        (lambda: holm([0.5, 1.5]), "between 0 and 1"),
    ],
)
def test_bad_input(bad, says):
    with pytest.raises(BadInput, match=says):
        bad()
