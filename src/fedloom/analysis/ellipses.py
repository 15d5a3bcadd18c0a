"""Classes as Gaussians in a plane (FedCR Figure 2, whose features have two dimensions)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_matrix, distinct
from fedloom.analysis.geometry import principal_components
from fedloom.errors import BadInput


@dataclass(frozen=True, eq=False)
class ClassEllipses:
    """Points in the plane with each class's mean, covariance and ellipse."""

    points: Tensor
    """[n, 2]."""
    labels: Tensor
    counts: Tensor
    """[C]."""
    means: Tensor
    """[C, 2]; NaN for a class without rows."""
    covariances: Tensor
    """[C, 2, 2] with divisor m - 1; NaN for a class of fewer than two rows."""
    half_axes: Tensor
    """[C, 2], the longer first, of the ellipse that holds `coverage` of such a Gaussian."""
    angles: Tensor
    """[C] of the longer axis against the first coordinate, in radians within [0, pi)."""
    coverage: float
    explained: float
    """Share of the variance the plane shows: 1 for two-dimensional features."""
    n: int


def class_ellipses(z: Array, y: Array, classes: int, coverage: float = 0.95) -> ClassEllipses:
    """Per-class Gaussians of features in two dimensions, or of wider ones' first two components.

    >>> z = torch.tensor([[0.0, 0], [2, 0], [1, 1], [1, -1], [9, 9]])
    >>> ellipses = class_ellipses(z, torch.tensor([0, 0, 0, 0, 2]), 3)
    >>> ellipses.means[0], ellipses.covariances[0]
    (tensor([1., 0.], dtype=torch.float64), tensor([[0.6667, 0.0000],
            [0.0000, 0.6667]], dtype=torch.float64))
    """
    rows = as_matrix(z)
    labels = as_labels(y, len(rows), classes)
    if rows.shape[1] < 2:
        raise BadInput("ellipses need features of two or more dimensions; these have one")
    if not 0 < coverage < 1:
        raise BadInput(f"coverage is {coverage}; it must lie between 0 and 1")
    points, explained = (rows, 1.0) if rows.shape[1] == 2 else _plane(rows)
    means = points.new_full((classes, 2), torch.nan)
    covariances = points.new_full((classes, 2, 2), torch.nan)
    for label in distinct(labels)[0]:
        own = points[labels == label]
        means[label] = own.mean(0)
        if len(own) > 1:
            moved = own - own.mean(0)
            covariances[label] = moved.T @ moved / (len(own) - 1)
    half_axes, angles = _axes(covariances)
    return ClassEllipses(
        points=points,
        labels=labels,
        counts=labels.bincount(minlength=classes),
        means=means,
        covariances=covariances,
        # in two dimensions the squared distance is exponential: P(r^2 <= x) = 1 - exp(-x/2)
        half_axes=half_axes * math.sqrt(-2 * math.log1p(-coverage)),
        angles=angles,
        coverage=coverage,
        explained=explained,
        n=len(rows),
    )


def _plane(rows: Tensor) -> tuple[Tensor, float]:
    scores, explained = principal_components(rows, 2)
    missing = scores.new_zeros(len(scores), 2 - scores.shape[1])
    return torch.cat([scores, missing], 1), explained


def _axes(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations along an ellipse's axes, longer first, and the longer one's angle."""
    a, b, c = covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]
    middle, spread = (a + c) / 2, torch.hypot((a - c) / 2, b)
    axes = torch.stack([middle + spread, (middle - spread).clamp_min(0)], 1).sqrt()
    return axes, (torch.atan2(2 * b, a - c) / 2).remainder(math.pi)
