"""Spread over clients, by hand and against what chance alone does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.analysis.evenness import fairness, lowest_by_chance, noise_variance
from fedloom.errors import BadInput
from fedloom.record import Spread

FOUR = [0.9, 0.8, 0.7, 0.6]


def test_four_clients():
    """Mean 3/4. Squared deviations .0225 + .0025 + .0025 + .0225 = .05: over 4 .0125 (sd .1118),
    over 3 .016667 (.1291). Jain 9 / (4 x 2.3) = .97826. Gini: pairs differ by .1 (three), .2 (two)
    and .3: twice 1.0 over 2 x 16 x .75 = .08333. Entropy of .3, .26667, .23333, .2 over ln 4:
    .99194. Quartiles of evenly spaced values: .675, .75, .825."""
    fair = fairness(FOUR, [50] * 4)
    assert fair.clients == 4
    assert (fair.mean, fair.weighted) == pytest.approx((0.75, 0.75))
    assert fair.std == pytest.approx(0.1118, abs=5e-5)
    assert math.sqrt(fair.true_variance + fair.noise_variance) == pytest.approx(0.1291, abs=5e-5)
    assert fair.jain == pytest.approx(0.97826, abs=5e-6)
    assert fair.gini == pytest.approx(0.08333, abs=5e-6)
    assert fair.entropy == pytest.approx(0.99194, abs=5e-6)
    assert fair.quartiles == pytest.approx((0.675, 0.75, 0.825))
    assert (fair.worst, fair.worst_decile, fair.best_decile) == (0.6, 0.6, 0.9)


def test_means_with_and_without_weights():
    """90, 80, 70, 60 % with 100, 100, 100, 700 rows: 75 % against (90 + 80 + 70 + 420)/1000."""
    fair = fairness(FOUR, [100, 100, 100, 700])
    assert fair.mean == pytest.approx(0.75)
    assert fair.weighted == pytest.approx(0.66)


def test_the_common_numbers_are_those_of_a_score():
    rng = np.random.default_rng(0)
    a, n = rng.uniform(size=40).tolist(), rng.integers(1, 90, 40).tolist()
    fair = fairness(a, n)
    for key in ("mean", "weighted", "std", "worst_decile"):
        assert getattr(fair, key) == getattr(Spread.of(a, n), key)
    assert fair.best_decile == pytest.approx(np.mean(sorted(a)[-4:]))


@pytest.mark.parametrize("value", [0.7, 0.0, 1.0])
def test_equal_clients_are_even(value):
    fair = fairness([value] * 5, [10] * 5)
    assert fair.std == pytest.approx(0.0, abs=1e-12)
    assert fair.jain == pytest.approx(1.0)
    assert fair.gini == pytest.approx(0.0, abs=1e-12)
    assert fair.entropy == pytest.approx(1.0)


def test_all_for_one_client():
    """Jain 1/K; Gini 1 - 1/K; no entropy."""
    fair = fairness([0.8, 0, 0, 0], [10] * 4)
    assert (fair.jain, fair.gini, fair.entropy) == pytest.approx((0.25, 0.75, 0.0))


def test_order_and_scale_do_not_matter():
    """Jain, Gini and entropy are of shares: half as accurate everywhere is as even."""
    whole, half = fairness(FOUR, [50] * 4), fairness([v / 2 for v in reversed(FOUR)], [50] * 4)
    assert (whole.jain, whole.gini) == pytest.approx((half.jain, half.gini))
    assert whole.entropy == pytest.approx(half.entropy)


def test_noise_by_hand():
    """.9 x .1 / 9 and .5 x .5 / 24: mean of .01 and .0104167."""
    assert noise_variance([0.9, 0.5], [10, 25]) == pytest.approx(0.01020833, abs=1e-8)


def test_the_spread_without_noise_is_recovered():
    """True accuracies with variance .0036, unlike test sets of 20 to 80 rows: observed is larger
    by the mean of p (1 - p)/n, about .0042, and less that it comes back; 20,000 clients know it to
    .0001. Over n instead of n - 1 the noise would be 3 % too small."""
    rng = np.random.default_rng(3)
    p = np.clip(rng.normal(0.75, 0.06, 20_000), 0, 1)
    n = rng.integers(20, 81, p.shape)
    fair = fairness(rng.binomial(n, p) / n, n)
    assert fair.noise_variance == pytest.approx((p * (1 - p) / n).mean(), rel=0.01)
    assert fair.std**2 == pytest.approx(0.0036 + 0.0042, abs=2e-4)
    assert fair.true_variance == pytest.approx(0.0036, abs=2e-4)
    assert fair.true_std == pytest.approx(0.06, abs=0.002)


def test_identical_clients_show_spread():
    """20 clients, p = .8, n = 50: sqrt(.16/50) = .0566 by chance, .055 as population deviation;
    without noise nothing is left on average."""
    a = np.random.default_rng(4).binomial(50, 0.8, (300, 20)) / 50
    simulated = [fairness(row, [50] * 20) for row in a]
    assert np.mean([f.std for f in simulated]) == pytest.approx(0.055, abs=0.002)
    assert np.mean([f.noise_variance for f in simulated]) == pytest.approx(0.0032, rel=0.02)
    assert np.mean([f.true_variance for f in simulated]) == pytest.approx(0.0, abs=2e-4)
    assert min(f.true_std for f in simulated) == 0.0
    assert np.mean([f.worst for f in simulated]) == pytest.approx(0.690, abs=0.006)


def test_lowest_by_chance():
    """20 clients, p = .8, n = 50: .690. Two coins: both are right in a quarter of cases. One
    client: no bias. One with a single row and one with two, p = 1/2: min is 1 with 1/8, 1/2 with
    1/2 x 1/2: 1/8 + 1/8."""
    assert lowest_by_chance(0.8, [50] * 20) == pytest.approx(0.690, abs=5e-4)
    assert lowest_by_chance(0.5, [1, 1]) == pytest.approx(0.25)
    assert lowest_by_chance(0.37, [7]) == pytest.approx(0.37, abs=1 / 4000)
    assert lowest_by_chance(0.5, [1, 2]) == pytest.approx(0.25)
    assert (lowest_by_chance(1.0, [9, 3]), lowest_by_chance(0.0, [9, 3])) == (1.0, 0.0)
    assert fairness([0.8] * 20, [50] * 20).worst_by_chance == pytest.approx(0.690, abs=5e-4)


def test_interval_of_the_worst_client():
    """Wilson with z = 1.96 for 6 of 10: centre (.6 + .19207)/1.38415 = .57225, half width
    1.95996 sqrt(.024 + .0096036)/1.38415 = .25957."""
    low, high = fairness([0.6, 0.9], [10, 500]).worst_interval
    assert (low, high) == pytest.approx((0.31268, 0.83182), abs=2e-5)


def test_one_client_has_no_spread():
    fair = fairness([0.4], [10])
    assert (fair.std, fair.jain, fair.gini, fair.entropy) == (0.0, 1.0, 0.0, 1.0)
    assert math.isnan(fair.true_variance)
    assert math.isnan(fair.true_std)


def test_a_single_row_tells_nothing_of_noise():
    fair = fairness([1.0, 0.5], [1, 10])
    assert math.isnan(fair.noise_variance)
    assert math.isnan(fair.true_variance)


@pytest.mark.parametrize(
    ("a", "n", "says"),
    [
        ([0.5, 70.0], [1, 1], "accuracy must lie between 0 and 1"),
        ([0.5], [0], "n must be whole numbers from 1"),
        ([0.5], [2.5], "n must be whole numbers from 1"),
        ([0.5, 0.6], [3], "accuracy 2, n 1"),
        ([], [], "at least one finite number"),
    ],
)
def test_bad_input(a, n, says):
    with pytest.raises(BadInput, match=says):
        fairness(a, n)
