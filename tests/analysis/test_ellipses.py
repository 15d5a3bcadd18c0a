"""Classes as Gaussians in a plane."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal

from fedloom.analysis.ellipses import class_ellipses
from fedloom.errors import BadInput


def test_two_dimensional_features_by_hand():
    """Rows (3,0), (-3,0), (0,1), (0,-1) about (5,5), turned by 30 degrees: variances 18/3 = 6 and
    2/3 along the axes. An ellipse holds 1 - exp(-r^2/2) of a Gaussian, so coverage 1 - exp(-2)
    has radius 2: half axes 2 sqrt 6 and 2 sqrt(2/3), at 30 degrees.
    """
    turn = math.radians(30)
    rotation = torch.tensor(
        [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]], dtype=torch.float64
    )
    z = torch.tensor([[3.0, 0], [-3, 0], [0, 1], [0, -1]], dtype=torch.float64) @ rotation + 5
    ellipses = class_ellipses(z, torch.tensor([1, 1, 1, 1]), 3, coverage=1 - math.exp(-2))
    assert torch.equal(ellipses.points, z)
    assert ellipses.explained == 1
    assert ellipses.counts.tolist() == [0, 4, 0]
    assert torch.allclose(ellipses.means[1], torch.tensor([5.0, 5.0], dtype=torch.float64))
    expected = rotation.T @ torch.diag(torch.tensor([6.0, 2 / 3], dtype=torch.float64)) @ rotation
    assert torch.allclose(ellipses.covariances[1], expected)
    assert ellipses.half_axes[1].tolist() == pytest.approx([2 * math.sqrt(6), 2 * math.sqrt(2 / 3)])
    assert float(ellipses.angles[1]) == pytest.approx(turn)


def test_the_ellipse_holds_its_share_of_a_gaussian():
    """20,000 correlated normal points, coverage .8: .8 of them inside, within 3 standard errors."""
    mix = torch.tensor([[2.0, 0.3], [-1.0, 0.7]], dtype=torch.float64)
    z = normal(20000, 2) @ mix
    ellipses = class_ellipses(z, torch.zeros(20000, dtype=torch.long), 1, coverage=0.8)
    angle = float(ellipses.angles[0])
    moved = z - ellipses.means[0]
    along = moved @ torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    across = moved @ torch.tensor([-math.sin(angle), math.cos(angle)], dtype=torch.float64)
    radius = (along / ellipses.half_axes[0, 0]) ** 2 + (across / ellipses.half_axes[0, 1]) ** 2
    assert float((radius <= 1).double().mean()) == pytest.approx(0.8, abs=0.0085)


def test_wide_features_are_shown_in_their_first_two_components():
    """A plane with axes of spread 5 and 2, hidden in ten dimensions by a turn and a shift: class
    covariances keep their axes, and the plane shows all the variance."""
    flat = normal(400, 2) * torch.tensor([5.0, 2.0])
    basis = torch.linalg.qr(normal(10, 10, seed=1)).Q[:2]
    labels = torch.arange(400) % 2
    wide = class_ellipses(flat @ basis + 3, labels, 2)
    plain = class_ellipses(flat, labels, 2)
    assert wide.explained == pytest.approx(1)
    assert torch.allclose(wide.half_axes, plain.half_axes)
    noisy = class_ellipses(flat @ basis + 0.5 * normal(400, 10, seed=2), labels, 2)
    assert noisy.explained == pytest.approx(29.5 / 31.5, abs=0.01)


def test_small_and_absent_classes_and_constant_features():
    """A class nobody holds has no mean, a class of one row no covariance; constants a point."""
    ellipses = class_ellipses(
        torch.tensor([[1.0, 2.0], [3, 4], [3, 4]]), torch.tensor([0, 2, 2]), 3
    )
    assert ellipses.means[0].tolist() == [1, 2]
    assert ellipses.means[1].isnan().all()
    assert ellipses.covariances[:2].isnan().all()
    assert ellipses.half_axes[2].tolist() == [0, 0]
    flat = class_ellipses(torch.full((4, 5), 0.1), torch.zeros(4, dtype=torch.long), 1)
    assert not flat.points.any()
    assert math.isnan(flat.explained)
    assert class_ellipses(torch.ones(1, 3), torch.tensor([0]), 1).points.tolist() == [[0, 0]]


def test_refusals():
    with pytest.raises(BadInput, match="two or more dimensions"):
        class_ellipses(torch.zeros(3), torch.zeros(3, dtype=torch.long), 1)
    with pytest.raises(BadInput, match="between 0 and 1"):
        class_ellipses(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), 1, coverage=95)
