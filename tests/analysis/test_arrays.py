"""Input of the diagnostics: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedloom.analysis.arrays import as_labels, as_logits, as_matrix, as_probabilities, distinct
from fedloom.errors import BadInput


def test_tensors_and_arrays_of_any_kind_become_the_same_matrix():
    """A reversed, read-only float32 array, a tensor with gradient and integers: float64 rows."""
    rows = np.arange(12, dtype=np.float32).reshape(2, 3, 2)[::-1]
    rows.flags.writeable = False
    expected = torch.tensor([[6.0, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]], dtype=torch.float64)
    for given in (rows, torch.tensor(rows.copy(), requires_grad=True), rows.astype(np.int64)):
        matrix = as_matrix(given)
        assert matrix.dtype == torch.float64
        assert not matrix.requires_grad
        assert torch.equal(matrix, expected)
    assert as_matrix(torch.zeros(3)).shape == (3, 1)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (torch.zeros(0, 3), "no rows"),
        (torch.tensor(1.0), "no rows"),
        (torch.tensor([[1.0, float("nan")]]), "diverged"),
        (torch.tensor([[1.0, float("inf")]]), "diverged"),
    ],
)
def test_features_that_cannot_be_used(features, words):
    with pytest.raises(BadInput, match=words):
        as_matrix(features)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor([0, 1]), r"shape \(2,\)"),
        (torch.tensor([0, 1, 3]), r"0 to 3; they must lie in 0\.\.2"),
        (torch.tensor([0, -1, 2]), "-1 to 2"),
        (torch.tensor([0.0, 1.0, 2.0]), "whole numbers"),
    ],
)
def test_labels_that_cannot_be_used(labels, words):
    with pytest.raises(BadInput, match=words):
        as_labels(labels, 3, 3)


def test_no_labels_at_all():
    with pytest.raises(BadInput, match="no labels"):
        as_labels(torch.zeros(0, dtype=torch.long), 0)


def test_logits_and_probabilities_are_not_taken_for_each_other():
    logits = torch.tensor([[2.0, -1.0], [0.5, 0.25]])
    with pytest.raises(BadInput, match="softmax"):
        as_probabilities(logits)
    with pytest.raises(BadInput, match="look like probabilities"):
        as_logits(logits.softmax(1))
    assert torch.equal(as_logits(logits.log_softmax(1)), logits.log_softmax(1).double())


def test_the_logarithm_of_a_zero_probability_is_small_and_finite():
    """104 below the row's largest, exp(-104) being zero in float32; others are refused."""
    logits = as_logits(torch.tensor([[0.5, 0.0, 0.5]]).log())
    assert float(logits[0, 1]) == pytest.approx(np.log(0.5) - 104)
    with pytest.raises(BadInput, match="diverged"):
        as_logits(torch.tensor([[0.0, float("inf")]]))
    with pytest.raises(BadInput, match="diverged"):
        as_logits(torch.tensor([[-float("inf"), -float("inf")]]))


def test_distinct_labels_are_those_that_occur():
    classes, place = distinct(torch.tensor([4, 0, 4, 9]))
    assert classes.tolist() == [0, 4, 9]
    assert place.tolist() == [1, 0, 1, 2]
