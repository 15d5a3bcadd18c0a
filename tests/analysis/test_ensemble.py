"""Averages of an ensemble: of probabilities and of logits."""

from __future__ import annotations

import pytest
import torch

from fedloom.analysis.ensemble import ensemble_calibration, logit_average, probability_average
from fedloom.analysis.reliability import calibration
from fedloom.errors import BadInput

THREE = torch.tensor([[[9.0, 0.0]], [[0.0, 2.0]], [[0.0, 2.0]]], dtype=torch.float64)


def test_the_two_averages_choose_different_classes():
    """Logits (9,0), (0,2), (0,2). Probabilities of class 0: .99988, .11920, .11920: mean .413.
    Mean logits (3, 4/3): sigmoid(5/3) = .841."""
    assert probability_average(THREE)[0].tolist() == pytest.approx([0.413, 0.587], abs=5e-4)
    assert logit_average(THREE)[0].tolist() == pytest.approx([0.841, 0.159], abs=5e-4)
    ensemble = ensemble_calibration(THREE, torch.tensor([1]))
    assert ensemble.disagreement == 1
    assert ensemble.probability_average.accuracy == 1
    assert ensemble.logit_average.accuracy == 0
    assert ensemble.single is None
    assert (ensemble.members, ensemble.n) == (3, 1)


def test_equal_members_are_one_model():
    logits = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.arange(40) % 5
    ensemble = ensemble_calibration(logits.expand(6, 40, 5), labels, single=logits)
    alone = calibration(logits.softmax(1), labels)
    for one in (ensemble.single, ensemble.probability_average, ensemble.logit_average):
        assert one is not None
        assert one.ece == pytest.approx(alone.ece)
        assert one.nll == pytest.approx(alone.nll)
    assert ensemble.disagreement == 0


def test_averaging_probabilities_lowers_confidence_and_beats_the_mean_member():
    """The maximum of a mean is at most the mean of maxima; -log is convex, so the average's loss
    is at most the members' mean loss, and so is the logits' average (log-sum-exp is convex)."""
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(18, 200, 4, generator=draw, dtype=torch.float64)
    labels = torch.arange(200) % 4
    members = [calibration(one.softmax(1), labels) for one in logits]
    ensemble = ensemble_calibration(logits, labels)
    mean_loss = sum(one.nll for one in members) / 18
    confidence = sum(one.gap + one.accuracy for one in members) / 18
    average = ensemble.probability_average
    assert average.nll < mean_loss
    assert ensemble.logit_average.nll < mean_loss
    assert average.gap + average.accuracy < confidence


def test_float32_arrays_are_averaged_in_float64():
    average = probability_average(THREE.float().numpy())
    assert average.dtype == torch.float64
    assert torch.allclose(average, probability_average(THREE))


def test_refusals():
    with pytest.raises(BadInput, match="look like probabilities"):
        probability_average(THREE.softmax(2))
    with pytest.raises(BadInput, match=r"shape \(3, 2\); give \[members"):
        logit_average(THREE[:, 0])
    with pytest.raises(BadInput, match="the same samples"):
        ensemble_calibration(THREE, torch.tensor([1]), single=torch.randn(2, 2))
