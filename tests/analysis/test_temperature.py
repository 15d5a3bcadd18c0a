"""One temperature by maximum likelihood."""

from __future__ import annotations

import math

import pytest
import torch

from fedloom.analysis.reliability import calibration
from fedloom.analysis.temperature import fit_temperature, tempered
from fedloom.errors import BadInput


def test_two_classes_by_hand():
    """All logits (4, 0), 9 of 12 right: sigmoid(4/T) = 3/4, so T = 4 / ln 3, and the loss is the
    entropy of (3/4, 1/4). The error of calibration is then 0."""
    logits = torch.tensor([[4.0, 0.0]]).repeat(12, 1)
    labels = torch.tensor([0] * 9 + [1] * 3)
    fit = fit_temperature(logits, labels)
    assert fit.value == pytest.approx(4 / math.log(3), rel=1e-9)
    assert fit.nll_after == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert fit.nll_before == pytest.approx(math.log1p(math.exp(4)) - 4 * 0.75)
    assert not fit.at_limit
    assert calibration(tempered(logits, fit.value), labels).ece == pytest.approx(0, abs=1e-9)


def test_a_known_temperature_is_found_again():
    """Labels drawn from softmax(z); from 3z the temperature is 3, from z/3 it is 1/3 of z's."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(20000, 8, generator=draw, dtype=torch.float64) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=draw).flatten()
    fit = fit_temperature(3 * z, labels)
    assert fit.value == pytest.approx(3, rel=0.03)
    assert fit.nll_after < fit.nll_before
    assert fit_temperature(z / 3, labels).value == pytest.approx(fit.value / 9, rel=1e-9)
    assert torch.equal(tempered(3 * z, fit.value).argmax(1), z.argmax(1))


def test_log_probabilities_are_logits_even_with_zeros():
    """softmax(log p) = p: from probabilities of one, rounded to zero elsewhere, 1 of 4 wrong. With
    104 between the two classes, T = 104 / ln 3."""
    p = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    fit = fit_temperature(p.log(), torch.tensor([0, 0, 0, 1]))
    assert fit.value == pytest.approx(104 / math.log(3))


def test_no_minimum_inside_the_limits():
    """All right: colder is always better. All wrong, or no difference: hotter."""
    logits = torch.tensor([[4.0, 0.0]]).repeat(3, 1)
    right = fit_temperature(logits, torch.tensor([0, 0, 0]))
    wrong = fit_temperature(logits, torch.tensor([1, 1, 1]))
    level = fit_temperature(torch.full((3, 2), 2.0), torch.tensor([1, 0, 1]))
    assert right.at_limit
    assert wrong.at_limit
    assert level.at_limit
    assert right.value == pytest.approx(1e-3)
    assert wrong.value == level.value == pytest.approx(1e3)
    assert level.nll_after == pytest.approx(math.log(2))


def test_probabilities_are_refused():
    with pytest.raises(BadInput, match="look like probabilities"):
        fit_temperature(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
