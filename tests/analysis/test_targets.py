"""How high and how soon, on curves worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedloom
from fedloom.analysis.targets import (
    best_rounds,
    height_by_chance,
    median_rounds,
    rounds_to_target,
    speed_up,
    worst_client,
)
from fedloom.core.protocol import Protocol
from fedloom.errors import BadInput
from fedloom.record import At, RoundRecord, Score
from fedloom.runs.choice import choose

CLIENTS = [(0.5, 0.1), (0.6, 0.3), (0.7, 0.2), (0.8, 0.5), (0.7, 0.6), (0.9, 0.4), (0.6, 0.6)]
MEANS = [sum(round_) / 2 for round_ in CLIENTS]
"""0.3, 0.45, 0.45, 0.65, 0.65, 0.65, 0.6"""


def test_best_five_are_not_consecutive():
    """The five largest means are .65, .65, .65, .6 and one .45 (the earlier one): 3.0 / 5 = .60.
    All seven rounds are among the last ten: 3.75 / 7."""
    best = best_rounds(MEANS)
    assert best.mean == pytest.approx(0.60)
    assert best.rounds == (4, 5, 6, 7, 2)
    assert best.scored == 7
    assert best.last == pytest.approx(3.75 / 7)


def test_best_five_of_the_worst_client():
    """The minima are .1 .3 .2 .5 .6 .4 .6, whoever has them; five largest: 2.4 / 5 = .48."""
    worst = worst_client(CLIENTS)
    assert worst.tolist() == [0.1, 0.3, 0.2, 0.5, 0.6, 0.4, 0.6]
    assert best_rounds(worst).mean == pytest.approx(0.48)


def test_worst_client_leaves_out_who_was_not_scored():
    assert worst_client([[0.5, None], [np.nan, 0.2]]).tolist() == [0.5, 0.2]
    with pytest.raises(BadInput, match="row 1 of accuracy has no scored client"):
        worst_client([[0.5, 0.6], [None, None]])


def test_the_last_ten_are_the_last():
    """Of 1, 2, ..., 30 the last ten have the mean 25.5, the five best 28."""
    best = best_rounds(range(1, 31))
    assert (best.last, best.mean) == (25.5, 28.0)


def test_best_five_is_what_the_protocol_reports():
    """One number, two places: the run's and a plain curve's."""
    rng = np.random.default_rng(0)
    clients = rng.uniform(size=(12, 3))
    records = [record(t, row) for t, row in enumerate(clients.tolist(), start=1)]
    protocol = Protocol(moment="received", select="mean_of_five_best_test")
    reported = choose(protocol, records).value
    assert best_rounds(clients.mean(axis=1)).mean == pytest.approx(reported, abs=1e-12)


def record(t, accuracy):
    """A round in which clients with ten rows each had these accuracies."""
    ids = tuple(range(len(accuracy)))
    score = Score(At("received", "test"), ids, (10,) * len(ids), {"accuracy": tuple(accuracy)})
    return RoundRecord(t - 1, t, "train", "model", ids, None, 0, 0, 0.0, {}, (score,))


def test_rounds_to_target():
    """The mean is .65 first in round 4 (so .6 is reached there), .45 in round 2, never .95."""
    assert rounds_to_target(MEANS, 0.6) == 4
    assert rounds_to_target(MEANS, 0.45) == 2  # at the target is reached
    assert rounds_to_target(MEANS, 0.95) is None


def test_rounds_are_those_that_were_scored():
    """With every tenth round scored, the fourth score is round 40's."""
    every_tenth = range(10, 80, 10)
    assert rounds_to_target(MEANS, 0.6, rounds=every_tenth) == 40
    assert best_rounds(MEANS, 2, rounds=every_tenth).rounds == (40, 50)


def test_a_running_mean_does_not_jump_at_a_spike():
    """.9 in round 2 is a spike; means of three are -, -, .5, .6, .5, .7."""
    curve = [0.2, 0.9, 0.4, 0.5, 0.6, 1.0]
    assert rounds_to_target(curve, 0.6) == 2
    assert rounds_to_target(curve, 0.6, window=3) == 4
    assert rounds_to_target(curve, 0.65, window=3) == 6
    assert rounds_to_target(curve, 0.1, window=7) is None


@pytest.mark.parametrize(("base", "other", "printed"), [(828, 628, 1.3), (736, 496, 1.5)])
def test_speed_up_of_fedbr(base, other, printed):
    """Table 1: 828/628 = 1.318, 736/496 = 1.484."""
    assert round(speed_up(base, other), 1) == printed


def test_speed_up_without_an_end():
    assert speed_up(None, 10) is None
    assert speed_up(10, None) is None


def test_never_is_late_and_not_a_number():
    """Sorted: 40, 60, never. Half of four between 60 and never is never."""
    assert median_rounds([None, 40, 60]) == 60
    assert median_rounds([40, 60]) == 50
    assert median_rounds([40, 60, None, None]) is None
    assert median_rounds([None]) is None
    with pytest.raises(BadInput, match="at least one seed"):
        median_rounds([])


def test_height_by_chance_of_few():
    """The larger of two standard normal values has the mean 1/sqrt(pi), of three 1.5/sqrt(pi);
    the better two of three have the mean of (0 + 1.5/sqrt(pi)) / 2; all of them: 0."""
    assert height_by_chance(2) == pytest.approx(1 / np.sqrt(np.pi))
    assert height_by_chance(3) == pytest.approx(1.5 / np.sqrt(np.pi))
    assert height_by_chance(3, 2) == pytest.approx(0.75 / np.sqrt(np.pi))
    assert height_by_chance(5, 5) == 0.0


def test_order_rewards_noise():
    """Flat curves of 1000 rounds: five best +2.86, best +3.24 standard deviations; 4000 of them
    are known to 0.01."""
    curves = np.random.default_rng(1).standard_normal((4000, 1000))
    five = np.partition(curves, -5, axis=1)[:, -5:].mean()
    assert five == pytest.approx(2.86, abs=0.01)
    assert height_by_chance(1000, 5) == pytest.approx(2.86, abs=0.005)
    assert height_by_chance(1000) == pytest.approx(3.24, abs=0.005)
    assert best_rounds(curves[0]).by_chance == height_by_chance(1000, 5)


def test_few_rounds_and_many():
    """One round is its own best, and nothing was chosen; a million rounds are no harder."""
    best = best_rounds([0.5])
    assert (best.mean, best.rounds, best.by_chance, best.last) == (0.5, (1,), 0.0, 0.5)
    assert height_by_chance(10**6) == pytest.approx(4.863, abs=0.001)


def test_tensors_will_do():
    assert best_rounds(torch.tensor([0.25, 0.75])).mean == 0.5


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: best_rounds([]), "the curve must be a row of at least one"),
        (lambda: best_rounds([0.1, float("nan")]), "finite number"),
        (lambda: best_rounds(["high"]), "the curve must be numbers"),
        (lambda: best_rounds([0.1], 0), "count must be 1 or more"),
        (lambda: best_rounds([0.1, 0.2], rounds=[1]), "curve 2, rounds 1"),
        (lambda: rounds_to_target([0.1, 0.2], 0.1, rounds=[2, 2]), "rounds must rise"),
        (lambda: rounds_to_target([0.1], 0.1, window=0), "window 0"),
        (lambda: height_by_chance(3, 4), "use 1 to 3"),
        (lambda: worst_client([0.1, 0.2]), "accuracy must have two axes"),
    ],
)
def test_bad_input(bad, says):
    with pytest.raises(BadInput, match=says):
        bad()


def test_fits_a_journal():
    """Two of three rounds are scored (every second, and the last): the curve is read off the
    records, and its last point is the run's result."""
    run = fedloom.run("fedavg", rounds=3, clients=4, partition="iid", eval_every=2)
    scored = [r for r in run.records if r.headline is not None]
    curve = [r.headline.value for r in scored]
    rounds = [r.round for r in scored]
    assert rounds == [2, 3]
    assert rounds_to_target(curve, curve[0], rounds=rounds) == 2
    assert curve[-1] == run.accuracy
