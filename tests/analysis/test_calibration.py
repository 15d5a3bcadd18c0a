"""Calibration errors: values worked by hand, bins, noise floor, clients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedloom.analysis.reliability import calibration, calibration_of_clients
from fedloom.errors import BadInput


def answers(*groups: tuple[float, int, int]) -> tuple[Tensor, Tensor]:
    """Groups of (confidence, samples, right ones) between two classes, class 0 always answered."""
    confidence = torch.cat([torch.full((n,), c).double() for c, n, _ in groups])
    labels = torch.cat([torch.tensor([0] * right + [1] * (n - right)) for _, n, right in groups])
    return torch.stack([confidence, 1 - confidence], 1), labels


def test_one_group():
    """100 samples at .8 with 60 right: .2 too confident. NLL .6 ln(1/.8) + .4 ln(1/.2); Brier
    .6 * 2 * .04 + .4 * 2 * .64 = .56."""
    score = calibration(*answers((0.8, 100, 60)))
    assert score.ece == score.mce == pytest.approx(0.2)
    assert score.rmsce == pytest.approx(0.2)
    assert score.gap == pytest.approx(0.2)
    assert score.accuracy == pytest.approx(0.6)
    assert score.nll == pytest.approx(-0.6 * math.log(0.8) - 0.4 * math.log(0.2))
    assert score.brier == pytest.approx(0.56)


def test_errors_of_opposite_sign_cancel_in_one_bin_only():
    """50 at .9 (40 right, +.1) and 50 at .6 (35 right, -.1): .1 with 15 bins, 0 with one."""
    both = answers((0.9, 50, 40), (0.6, 50, 35))
    assert calibration(*both).ece == pytest.approx(0.1)
    assert calibration(*both, bins=1).ece == pytest.approx(0)
    assert calibration(*both).gap == pytest.approx(0)


def test_the_three_errors_differ_on_unequal_groups():
    """30 at .95, 27 right (+.05), 10 at .65, 4 right (+.25): ece (1.5 + 2.5)/40 = .1, mce .25,
    rmsce sqrt((30 * .0025 + 10 * .0625)/40) = sqrt(.0175). The table has 13 empty bins."""
    score = calibration(*answers((0.95, 30, 27), (0.65, 10, 4)))
    assert score.ece == pytest.approx(0.1)
    assert score.mce == pytest.approx(0.25)
    assert score.rmsce == pytest.approx(math.sqrt(0.0175))
    assert score.table.counts[[9, 14]].tolist() == [10, 30]
    assert score.table.confidence[[9, 14]].tolist() == pytest.approx([0.65, 0.95])
    assert score.table.accuracy[[9, 14]].tolist() == pytest.approx([0.4, 0.9])
    assert int(score.table.confidence.isnan().sum()) == 13


def test_certain_and_right():
    score = calibration(*answers((1.0, 8, 8)))
    assert (score.ece, score.mce, score.nll, score.brier, score.noise) == (0, 0, 0, 0, 0)
    assert score.table.counts[-1] == 8


def test_certain_and_wrong_has_an_infinite_likelihood_loss():
    score = calibration(*answers((1.0, 8, 7)))
    assert score.nll == math.inf
    assert score.ece == pytest.approx(1 / 8)


def test_noise_floor():
    """Calibrated at .7, one bin of 100: sqrt(2 * .21 / (100 pi)) = .0366; simulated .0362."""
    right = torch.rand(2000, 100, generator=torch.Generator().manual_seed(0)) < 0.7
    runs = [calibration(*answers((0.7, 100, int(one.sum())))) for one in right]
    assert runs[0].noise == pytest.approx(0.0366, abs=1e-4)
    assert sum(one.ece for one in runs) / 2000 == pytest.approx(0.0362, abs=0.001)


def test_noise_floor_over_many_bins():
    """Confidences spread over (.5, 1), truths drawn from them, 300 samples in 15 bins: the mean
    error is mere noise and the closed form tells how much."""
    draw = torch.Generator().manual_seed(0)
    runs = []
    for _ in range(100):
        confidence = 0.5 + 0.5 * torch.rand(300, generator=draw, dtype=torch.float64)
        labels = (torch.rand(300, generator=draw) > confidence).long()
        runs.append(calibration(torch.stack([confidence, 1 - confidence], 1), labels))
    mean = sum(one.ece for one in runs) / 100
    assert mean == pytest.approx(sum(one.noise for one in runs) / 100, rel=0.05)
    assert mean > 0.03


def test_equal_mass_bins():
    """Confidences .6, .61, .62, .9 in two bins: the median .615 parts them 2 and 2, where bins of
    equal width hold all four. Right: 1, 0, 1, 1: |.5 - .605|, |1 - .76|, mean .1725."""
    confidence = torch.tensor([0.6, 0.61, 0.62, 0.9], dtype=torch.float64)
    rows = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.tensor([0, 1, 0, 0])
    score = calibration(rows, labels, bins=2, equal_mass=True)
    assert score.table.counts.tolist() == [2, 2]
    assert score.ece == pytest.approx(0.1725)
    assert calibration(rows, labels, bins=2).table.counts.tolist() == [0, 4]
    tied = calibration(*answers((0.8, 100, 60)), equal_mass=True)
    assert tied.ece == pytest.approx(0.2)


def test_clients_pooled_and_one_by_one():
    """.8 confident; 50 with 45 right (-.1), 150 with 105 right (+.1): pooled accuracy 150/200,
    error .05; the mean over clients .1, and its noise that of smaller sets."""
    clients = [answers((0.8, 50, 45)), answers((0.8, 150, 105))]
    scores = calibration_of_clients(clients)
    assert scores.pooled.ece == pytest.approx(0.05)
    assert scores.mean_ece == pytest.approx(0.1)
    floor = math.sqrt(2 * 0.16 / math.pi)
    assert scores.pooled.noise == pytest.approx(floor / math.sqrt(200))
    assert scores.mean_noise == pytest.approx((floor / math.sqrt(50) + floor / math.sqrt(150)) / 2)
    assert [one.n for one in scores.clients] == [50, 150]


def test_order_of_samples_and_names_of_classes_do_not_matter():
    rows = torch.randn(80, 6, generator=torch.Generator().manual_seed(0)).double().softmax(1)
    labels, order = torch.arange(80) % 6, torch.arange(80).flip(0)
    names = torch.tensor([3, 0, 5, 1, 2, 4])
    renamed = torch.empty_like(rows)
    renamed[:, names] = rows
    a, b = calibration(rows, labels), calibration(renamed[order], names[labels][order])
    for name in ("ece", "mce", "rmsce", "gap", "nll", "brier", "noise"):
        assert getattr(a, name) == pytest.approx(getattr(b, name)), name


def test_one_sample_and_refusals():
    score = calibration(torch.tensor([[0.3, 0.7]]), torch.tensor([0]))
    assert score.ece == pytest.approx(0.7)
    with pytest.raises(BadInput, match="softmax"):
        calibration(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    with pytest.raises(BadInput, match="at least one"):
        calibration(torch.tensor([[0.3, 0.7]]), torch.tensor([0]), bins=0)
    with pytest.raises(BadInput, match="no clients"):
        calibration_of_clients([])
    two, three = torch.full((1, 2), 1 / 2), torch.full((1, 3), 1 / 3)
    with pytest.raises(BadInput, match="different numbers of classes"):
        calibration_of_clients([(two, torch.tensor([0])), (three, torch.tensor([0]))])
