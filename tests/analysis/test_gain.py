"""What a client gains over training alone, and what only looks like it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fedloom
from fedloom.analysis.collaboration_gain import gain, trend
from fedloom.errors import BadInput
from fedloom.record import At

LOCAL = [0.5, 0.6, 0.7, 0.8]


def test_the_same_model_gains_nothing():
    gained = gain(LOCAL, LOCAL, [100] * 4)
    assert gained.gains == (0.0,) * 4
    assert (gained.mean, gained.median, gained.worst) == (0.0, 0.0, 0.0)
    assert (gained.helped, gained.harmed, gained.positive, gained.sign_p) == (0.0, 0.0, 0.0, 1.0)


def test_ten_points_everywhere():
    """10 of 100 rows more, none less: error sqrt(10 - 100/100)/100 = .03, so .1 is 3.3 errors off;
    all of six clients: sign test 2/2^6."""
    local = [*LOCAL, 0.2, 0.3]
    gained = gain([v + 0.1 for v in local], local, [100] * 6, [(10, 0)] * 6)
    assert (gained.mean, gained.median, gained.worst) == pytest.approx((0.1, 0.1, 0.1))
    assert gained.errors == pytest.approx([0.03] * 6)
    assert (gained.helped, gained.positive, gained.harmed) == (1.0, 1.0, 0.0)
    assert gained.sign_p == 2 / 2**6


def test_errors_from_disagreements():
    """b = 12, c = 3, n = 100: sqrt(15 - 81/100)/100 = .037670; .09 is 2.39 errors. b = 30, c = 21:
    sqrt(51 - .81)/100 = .070845; the same gain is only 1.27 errors."""
    gained = gain([0.6, 0.6], [0.51, 0.51], [100, 100], [(12, 3), (30, 21)])
    assert gained.errors == pytest.approx((0.037670, 0.070845), abs=1e-6)
    assert gained.helped == 0.5
    assert gained.positive == 1.0


def test_a_gain_is_clear_from_196_hundredths_of_its_error():
    """.6 over .5 has the error sqrt((.24 + .25)/n); .1 is 1.96 of it at n = 188.2."""
    gained = gain([0.6, 0.6, 0.5, 0.5], [0.5, 0.5, 0.6, 0.6], [188, 189, 188, 189])
    assert (gained.helped, gained.harmed) == (0.25, 0.25)


def test_errors_from_accuracies_alone():
    """.6 and .5 of 25 rows: sqrt((.24 + .25)/25) = .14."""
    assert gain([0.6], [0.5], [25]).errors == pytest.approx((0.14,))


def test_helped_and_harmed():
    """Gains +.3, -.3, +.02, 0 of 100 rows: the first two are clear; the worst is client 1, of 90
    rows; two up, one down: sign test 1."""
    gained = gain([0.8, 0.3, 0.52, 0.5], [0.5, 0.6, 0.5, 0.5], [100, 90, 100, 100])
    assert (gained.helped, gained.harmed, gained.positive) == (0.25, 0.25, 0.5)
    assert (gained.worst, gained.worst_client) == (pytest.approx(-0.3), 1)
    assert gained.n[gained.worst_client] == 90
    assert gained.median == pytest.approx(0.01)
    assert gained.mean == pytest.approx(0.005)
    assert gained.sign_p == 1.0


def test_paired_errors_are_true():
    """Rows of two models that often agree: the spread of gains over 20,000 clients is the paired
    error: only-right shares .2 and .1, n = 50: sqrt((.3 - .01)/50) = .07616. Independent models
    would have sqrt((.24 + .25)/50) = .099."""
    counts = np.random.default_rng(0).multinomial(50, [0.2, 0.1, 0.4, 0.3], 20_000)
    b, c, both = counts[:, 0], counts[:, 1], counts[:, 2]
    gained = gain((both + b) / 50, (both + c) / 50, [50] * 20_000, np.stack([b, c], axis=1))
    assert np.std(gained.gains) == pytest.approx(0.07616, rel=0.02)
    assert np.mean(np.square(gained.errors)) == pytest.approx(0.07616**2, rel=0.03)


def noise(runs: int) -> np.ndarray:
    """Accuracies of so many runs on the same 40,000 clients: p in .6 to .9, 50 rows, no effect."""
    rng = np.random.default_rng(7)
    p = rng.uniform(0.6, 0.9, 40_000)
    return np.stack([rng.binomial(50, p) / 50 for _ in range(runs)])


def test_local_on_both_axes_correlates_by_itself():
    """e^2 = E p(1-p)/50 = (.1875 - .0075)/50 = .0036, v = .3^2/12 = .0075: r = -.06/sqrt(.0222) =
    -.403 (diagnostics.md simulated -.42). Another Local, or the mean, show none."""
    method, local, other = noise(3)
    n = [50] * len(local)
    naive = np.corrcoef(method - local, local)[0, 1]
    assert naive == pytest.approx(-0.403, abs=0.01)
    fair, mean = trend(method, local, n, other), trend(method, local, n)
    assert fair.correlation == pytest.approx(0.0, abs=0.02)
    assert mean.correlation == pytest.approx(0.0, abs=0.02)
    assert (fair.axis, mean.axis) == ("another Local seed", "mean of method and Local")
    assert fair.artefact == pytest.approx(-0.403, abs=0.01)
    assert fair.clients == 40_000


def test_a_true_trend_is_seen():
    """The worse alone, the more gained: everybody reaches .9."""
    local = np.linspace(0.4, 0.8, 9)
    assert trend([0.9] * 9, local, [10_000] * 9, local).correlation == pytest.approx(-1.0)


def test_trend_of_nothing():
    one = trend([0.5], [0.4], [10])
    assert math.isnan(one.correlation)
    assert math.isnan(one.artefact)
    assert math.isnan(trend([0.5, 0.5], [0.4, 0.4], [10, 10], [0.4, 0.5]).correlation)
    assert math.isnan(trend([0.5, 0.6], [0.4, 0.1], [10, 10], [0.4, 0.4]).correlation)
    assert math.isnan(trend([0.5, 0.6], [0.0, 1.0], [1, 10]).artefact)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([0.5], [0.5, 0.6], [10]), "method 1, local 2, n 1"),
        (([50], [0.5], [10]), "method must lie between 0 and 1"),
        (([0.5], [0.5], [10], [(1, 1, 1)]), "two counts for each of 1 clients"),
        (([0.5], [0.4], [10], [(1, 1)]), "not of the same rows"),
        (([0.5], [0.5], [10], [(6, 6)]), "not of the same rows"),
    ],
)
def test_bad_input(arguments, says):
    with pytest.raises(BadInput, match=says):
        gain(*arguments)


def test_fits_two_journals():
    """Clients and rows as the last records have them; the mean gain is the runs' difference."""
    method, local = (
        fedloom.run(name, rounds=2, clients=4, partition="iid") for name in ("fedavg", "local")
    )
    scores = [run.records[-1].score(At("received", "test")) for run in (method, local)]
    assert scores[0].rows == scores[1].rows
    gained = gain(scores[0].metrics["accuracy"], scores[1].metrics["accuracy"], scores[0].rows)
    assert gained.mean == pytest.approx(method.accuracy - local.accuracy)
