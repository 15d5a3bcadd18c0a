"""Predictions on classes a client never saw."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analysis.class_bias import classifier_bias, prior_agreement
from fedloom.errors import BadInput

HALF = torch.tensor([1] * 5 + [0] * 5)
UNSEEN = torch.arange(5, 10).repeat(4)


def one_hot(answers: Tensor, classes: int = 10) -> Tensor:
    return F.one_hot(answers, classes).double()


def test_everything_goes_into_seen_classes():
    """Ten classes, 0..4 seen; samples of 5..9 predicted evenly as 0..4: mass 1 hard and soft,
    entropy ln 5 / ln 10 = .69897, total variation to the labels 1."""
    bias = classifier_bias(one_hot(UNSEEN - 5), UNSEEN, HALF)
    assert bias.seen_mass == bias.seen_mass_soft == 1
    assert bias.entropy == pytest.approx(0.69897, abs=1e-5)
    assert bias.distance_to_labels == pytest.approx(1)
    assert bias.unseen_recall == 0
    assert bias.blind == 0.5
    assert (bias.n_unseen, bias.n_seen) == (20, 0)
    assert math.isnan(bias.seen_recall)
    assert bias.seen_mass_noise == 0


def test_shares_that_add_up_to_more_than_one_are_a_mass_of_one():
    """9/28 + 18/28 + 1/28 is above 1 by rounding, and the noise of that mass a root of less than
    nothing."""
    assert 9 / 28 + 18 / 28 + 1 / 28 > 1
    answers = torch.tensor([0] * 9 + [1] * 18 + [2])
    bias = classifier_bias(one_hot(answers), torch.full_like(answers, 7), HALF)
    assert (bias.seen_mass, bias.seen_mass_noise) == (1, 0)


def test_a_hair_above_uniform_is_right_hard_and_blind_soft():
    """Uniform with an epsilon for the true label: mass 0 hard, .5 soft, total variation 0."""
    probabilities = torch.full((20, 10), 0.1).double() + 1e-9 * one_hot(UNSEEN)
    bias = classifier_bias(probabilities, UNSEEN, HALF)
    assert bias.seen_mass == 0
    assert bias.seen_mass_soft == pytest.approx(0.5)
    assert bias.distance_to_labels == pytest.approx(0)
    assert bias.unseen_recall == 1
    assert torch.allclose(bias.mean_softmax, torch.full((10,), 0.1).double())


def test_worked_by_hand():
    """Classes 0, 1 seen. Rows of class 2: predicted 0, 1, 2, 2 -> mass 1/2, recall 1/2, total
    variation (1/4 + 1/4 + 1/2)/2 = 1/2. Soft: .6+.3, .1+.8, .2+.2, .1+.1 over 4 = .6. Rows of class
    0: predicted 2 and 0; asked among 0 and 1 only: 0 and 0 -> recall 1/2, restricted 1."""
    probabilities = torch.tensor(
        [
            [0.6, 0.3, 0.1],
            [0.1, 0.8, 0.1],
            [0.2, 0.2, 0.6],
            [0.1, 0.1, 0.8],
            [0.3, 0.2, 0.5],
            [0.7, 0.2, 0.1],
        ]
    )
    bias = classifier_bias(probabilities, torch.tensor([2, 2, 2, 2, 0, 0]), torch.tensor([9, 3, 0]))
    assert bias.seen_mass == pytest.approx(0.5)
    assert bias.seen_mass_soft == pytest.approx(0.6)
    assert bias.predicted.tolist() == [0.25, 0.25, 0.5]
    assert bias.distance_to_labels == pytest.approx(0.5)
    assert bias.unseen_recall == 0.5
    assert bias.seen_recall == 0.5
    assert bias.seen_recall_restricted == 1
    assert bias.seen_mass_noise == pytest.approx(0.25)  # sqrt(.5 * .5 / 4)


def test_renaming_the_classes_changes_nothing():
    rows = torch.randn(60, 10, generator=torch.Generator().manual_seed(0)).softmax(1)
    labels, names = torch.arange(60) % 10, torch.tensor([3, 8, 0, 9, 1, 7, 2, 5, 6, 4])
    renamed = torch.empty_like(rows)
    renamed[:, names] = rows
    counts = torch.empty_like(HALF)
    counts[names] = HALF
    a, b = classifier_bias(rows, labels, HALF), classifier_bias(renamed, names[labels], counts)
    for name in ("seen_mass", "seen_mass_soft", "entropy", "distance_to_labels", "unseen_recall"):
        assert getattr(a, name) == pytest.approx(getattr(b, name)), name
    assert a.seen_recall_restricted == b.seen_recall_restricted


def test_what_counts_as_seen_has_a_threshold():
    counts = torch.tensor([50, 3, 0])
    rows, labels = torch.full((3, 3), 1 / 3), torch.tensor([0, 1, 2])
    assert classifier_bias(rows, labels, counts).seen.tolist() == [True, True, False]
    assert classifier_bias(rows, labels, counts, 10).seen.tolist() == [True, False, False]


def test_noise_of_the_distance():
    """200 draws from ten equal classes: (10/2) sqrt(2 * .09 / (pi * 200)) = .0846; simulated."""
    draws = torch.randint(10, (300, 200), generator=torch.Generator().manual_seed(0))
    agreements = [prior_agreement(one_hot(one), torch.ones(10)) for one in draws]
    assert agreements[0].distance_noise == pytest.approx(0.0846, abs=1e-4)
    assert sum(one.distance_to_uniform for one in agreements) / 300 == pytest.approx(
        0.0846, abs=0.003
    )


def test_predictions_that_follow_the_local_labels():
    """Predictions 3:1 and labels 30:10: correlation 1; KL to the smoothed (31/42, 11/42). Reversed
    labels: correlation -1. Uniform labels: nothing to correlate with."""
    rows = one_hot(torch.tensor([0, 0, 0, 1]), 2)
    agreement = prior_agreement(rows, torch.tensor([30, 10]))
    assert agreement.correlation == pytest.approx(1)
    expected = 0.75 * math.log(0.75 * 42 / 31) + 0.25 * math.log(0.25 * 42 / 11)
    assert agreement.divergence == pytest.approx(expected)
    assert agreement.distance_to_uniform == pytest.approx(0.25)
    assert prior_agreement(rows, torch.tensor([10, 30])).correlation == pytest.approx(-1)
    assert math.isnan(prior_agreement(rows, torch.tensor([5, 5])).correlation)
    absent = prior_agreement(one_hot(torch.tensor([0, 0]), 2), torch.tensor([30, 0]))
    assert absent.divergence == pytest.approx(math.log(32 / 31))


def test_a_client_that_saw_every_class_has_no_bias_to_measure():
    bias = classifier_bias(one_hot(UNSEEN), UNSEEN, torch.ones(10))
    for value in (bias.seen_mass, bias.seen_mass_soft, bias.entropy, bias.distance_to_labels):
        assert math.isnan(value)
    assert math.isnan(bias.unseen_recall)
    assert (bias.n_unseen, bias.seen_recall) == (0, 1)


def test_refusals():
    with pytest.raises(BadInput, match="softmax"):
        classifier_bias(torch.randn(20, 10), UNSEEN, HALF)
    with pytest.raises(BadInput, match="10 numbers"):
        classifier_bias(one_hot(UNSEEN), UNSEEN, HALF[:9])
    with pytest.raises(BadInput, match=r"lie in 0\.\.9"):
        classifier_bias(one_hot(UNSEEN), UNSEEN + 1, HALF)
