"""Class-wise separation: values worked by hand, brute force, noise and degenerate classes."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal

from fedloom.analysis.separation import class_separation


def test_one_hot_features_are_wholly_separated():
    """Within distance 0."""
    separation = class_separation(torch.eye(4).repeat(3, 1), torch.arange(4).repeat(3))
    assert separation.value == 1
    assert (separation.n, separation.classes) == (12, 4)


def test_two_classes_of_the_same_samples_are_not():
    """Both hold +e1 and -e1: mu_k = 0, within = total = 1."""
    z = torch.tensor([[1.0, 0], [-1, 0], [1, 0], [-1, 0]])
    separation = class_separation(z, torch.tensor([0, 0, 1, 1]))
    assert (separation.value, separation.within, separation.total) == (0, 1, 1)


def test_two_fans_of_sixty_degrees():
    """Classes at +x and -x, each of two unit vectors at +-60 degrees: |mu_k| = cos 60, mu = 0, so
    R^2 = 1 - (1 - cos^2 60) / 1 = .25. Lengths of the vectors do not matter.
    """
    angles = torch.tensor([60.0, -60, 120, 240], dtype=torch.float64).deg2rad()
    fan = torch.stack([angles.cos(), angles.sin()], 1)
    lengths = torch.tensor([[1.0], [7], [0.2], [3]])
    assert class_separation(fan * lengths, torch.tensor([5, 5, 2, 2])).value == pytest.approx(0.25)


@pytest.mark.parametrize("debiased", [False, True])
def test_unequal_classes_by_brute_force(debiased):
    """Sizes 5, 17, 9: mean over classes (pairs of classes) of the mean over pairs of samples; the
    debiased one leaves out the pairs of a sample with itself."""
    sizes = [5, 17, 9]
    y = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    z = normal(31, 6) + y[:, None] * 0.5
    unit = z / z.norm(dim=1, keepdim=True)
    distance = 1 - unit @ unit.T
    blocks = [[distance[y == j][:, y == k] for k in range(3)] for j in range(3)]
    own = [
        blocks[k][k].sum() / (m * (m - 1)) if debiased else blocks[k][k].mean()
        for k, m in enumerate(sizes)
    ]
    total = sum(own[j] if j == k else blocks[j][k].mean() for j in range(3) for k in range(3)) / 9
    separation = class_separation(z, y, debiased)
    assert separation.within == pytest.approx(float(sum(own) / 3), rel=1e-12)
    assert separation.value == pytest.approx(1 - float(sum(own) / 3 / total), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 4.0])
def test_noise_of_tiny_classes_is_the_null(shift):
    """m = 2, K = 20: 1 - (1 - 1/2)/(1 - 1/40) = .487; debiased 0. A mean that all rows share (as
    after a ReLU) makes every distance small but leaves the ratio."""
    y = torch.arange(20).repeat(2)
    separations = [class_separation(normal(40, 30, seed=s) + shift, y) for s in range(30)]
    fair = [class_separation(normal(40, 30, seed=s) + shift, y, debiased=True) for s in range(30)]
    assert separations[0].null == pytest.approx(0.487179, abs=1e-6)
    assert sum(one.value for one in separations) / 30 == pytest.approx(0.487, abs=0.01)
    assert abs(sum(one.value for one in fair) / 30) < 0.015
    assert fair[0].null == 0


def test_rows_without_direction_and_lonely_classes_are_dropped_and_counted():
    """Class 1 keeps one row after its zero row is dropped, and so is too small; the rest is the
    pair of classes 0 and 2."""
    z = torch.tensor([[1.0, 0], [1, 0], [0, 0], [5, 5], [0, 1], [0, 1]])
    separation = class_separation(z, torch.tensor([0, 0, 1, 1, 2, 2]))
    assert (
        separation.n,
        separation.classes,
        separation.zero_rows,
        separation.small_class_rows,
    ) == (4, 2, 1, 1)
    assert separation.value == 1


@pytest.mark.parametrize(
    ("z", "y"),
    [
        (torch.ones(1, 3), [0]),
        (torch.zeros(4, 3), [0, 0, 1, 1]),
        (torch.full((4, 3), 0.1), [0, 0, 1, 1]),
        (torch.eye(4), [2, 2, 2, 2]),
        (torch.eye(4), [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("debiased", [False, True])
def test_nothing_to_separate_is_nan(z, y, debiased):
    """One row, no directions, one direction, one class, classes of one row."""
    assert math.isnan(class_separation(z, torch.tensor(y), debiased).value)


def test_turning_and_renaming_change_nothing():
    z, y = normal(30, 5), torch.arange(30) % 3
    turn = torch.linalg.qr(normal(5, 5, seed=1)).Q
    renamed = torch.tensor([7, 0, 4])[y]
    first, second = class_separation(z, y), class_separation(4 * z @ turn, renamed)
    assert first.value == pytest.approx(second.value, rel=1e-12)
