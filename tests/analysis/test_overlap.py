"""Overlap of features of disjoint inputs."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal
from sklearn.metrics import roc_auc_score

from fedloom.analysis.overlap import (
    _shares_of_rows,
    centroid_ratio,
    feature_collapse,
    set_overlap,
)
from fedloom.core.rng import generator
from fedloom.errors import BadInput


def test_worked_by_hand():
    """{0,2} and {6,8}: means 1 and 7 about 4, between 4 * 9 = 36, total 40, eta2 .9. Energy: cross
    distances 6, 8, 4, 6 (mean 6), inside 2 and 2: 12 - 4 = 8, over the mean of all six, 28/6.
    Two neighbours: 6 sees 8, 2; 8 sees 6, 2: half in the first set, over 2/3: 3/4.
    """
    overlap = set_overlap(torch.tensor([0.0, 2]), torch.tensor([6.0, 8]), k=2)
    assert overlap.eta2 == pytest.approx(0.9)
    assert overlap.null_eta2 == pytest.approx(1 / 3)
    assert overlap.energy == pytest.approx(8 / (28 / 6))
    assert overlap.cross_neighbours == pytest.approx(0.75)
    assert math.isnan(overlap.auc)
    assert (overlap.n, overlap.k) == ((2, 2), 2)


def test_the_discriminator_is_standardised_without_its_held_out_rows():
    """Against the same worked out fold by fold, with scikit-learn's area. Three columns: one that
    varies in a single row and is constant where that row is held out, one of large offset."""
    first, second = normal(20, 40), normal(20, 40, seed=1) + 0.2
    first[:, 0] = second[:, 0] = 0.3
    first[4, 0] = 9.0
    second[:, 1] += 1e4
    overlap = set_overlap(first, second)
    rows, member = torch.cat([first, second]), torch.tensor([0] * 20 + [1] * 20)
    shuffle, fold = generator(0, "folds of an overlap"), torch.empty(40, dtype=torch.long)
    for group in range(2):
        own = (member == group).nonzero().flatten()
        fold[own[torch.randperm(20, generator=shuffle)]] = torch.arange(20) % 5
    areas = []
    for held in range(5):
        train, test = fold != held, fold == held
        spread = rows[train].std(0, correction=0)
        spread[rows[train].amax(0) == rows[train].amin(0)] = math.inf
        x = (rows - rows[train].mean(0)) / spread / math.sqrt(40)
        target = torch.where(member[train] == 1, 1.0, -1.0).double()
        weight = torch.linalg.solve(x[train].T @ x[train] + torch.eye(40), x[train].T @ target)
        areas.append(roc_auc_score(member[test], x[test] @ weight))
    assert overlap.auc == pytest.approx(sum(areas) / 5, abs=1e-12)


def test_two_gaussians_four_apart():
    """d = 8: between variance (4/2)^2 = 4, within 8: 4/12 = .333. The best linear error is
    Phi(-2) = .0228 and the AUC Phi(4/sqrt 2) = .9977; A-distance 2 (1 - 2 * .0228) = 1.909."""
    second = normal(1000, 8, seed=1)
    second[:, 0] += 4
    overlap = set_overlap(normal(1000, 8), second)
    assert overlap.eta2 == pytest.approx(1 / 3, abs=0.015)
    assert overlap.auc == pytest.approx(0.9977, abs=0.002)
    assert overlap.a_distance == pytest.approx(1.909, abs=0.03)
    assert overlap.cross_neighbours < 0.2
    assert overlap.energy > 0.2


def test_unequal_sets_count_alike_in_the_discriminator():
    """1500 and 100 rows, 4 apart: a threshold halfway has error Phi(-2) on both sides; one at the
    pooled mean, a quarter from the larger set, would be wrong for four in ten of it."""
    second = normal(100, 4, seed=1)
    second[:, 0] += 4
    assert set_overlap(normal(1500, 4), second).a_distance == pytest.approx(1.909, abs=0.08)


@pytest.mark.parametrize("columns", [8, 300])
def test_one_law(columns):
    """Every number at its null, in fewer and in more dimensions than rows."""
    runs = [
        set_overlap(normal(120, columns, seed=s), normal(80, columns, seed=s + 99))
        for s in range(8)
    ]
    assert runs[0].null_eta2 == 1 / 199
    mean = {
        name: sum(getattr(one, name) for one in runs) / 8
        for name in ("eta2", "auc", "a_distance", "cross_neighbours", "energy")
    }
    assert mean["eta2"] == pytest.approx(1 / 199, rel=0.4)
    assert mean["auc"] == pytest.approx(0.5, abs=3 * runs[0].auc_noise / math.sqrt(8))
    assert mean["a_distance"] == pytest.approx(0, abs=0.15)
    assert mean["cross_neighbours"] == pytest.approx(1, abs=0.1)
    assert mean["energy"] == pytest.approx(0, abs=0.01)


def test_noise_of_the_area():
    """Mann-Whitney: sqrt((n + m + 1) / (12 n m)); 120 and 80 rows: .0418."""
    overlap = set_overlap(normal(120, 2), normal(80, 2, seed=1))
    assert overlap.auc_noise == pytest.approx(math.sqrt(201 / (12 * 120 * 80)))


def test_a_ring_about_a_ball_is_seen_by_neighbours_only():
    """Same means, so eta2 and the linear area are at chance, while nobody's neighbours cross."""
    ball = normal(200, 2) * 0.1
    ring = normal(200, 2, seed=1)
    ring = 5 * ring / ring.norm(dim=1, keepdim=True)
    overlap = set_overlap(ball, ring)
    assert overlap.eta2 < 0.03
    assert overlap.auc < 0.65
    assert overlap.cross_neighbours == 0
    assert overlap.energy > 0.2


def test_separated_sets_in_more_dimensions_than_rows():
    overlap = set_overlap(normal(30, 100), normal(30, 100, seed=1) + 3)
    assert overlap.auc == 1
    assert overlap.a_distance == 2


@pytest.mark.parametrize("digits", [0, 1, 6])
def test_a_factor_in_single_precision_loses_no_digits_of_the_discriminator(digits):
    """(xx' + 1)^-1 t in double precision, for rows of mean square norm one, as standardised ones
    have, whose directions are equally large or many digits apart."""
    sizes = torch.logspace(0, -digits, 200, dtype=torch.float64)
    x, t = normal(60, 200) * sizes, normal(60, seed=1)
    x /= x.square().sum(1).mean().sqrt()
    exact = torch.linalg.solve(x @ x.T + torch.eye(60, dtype=torch.float64), t)
    assert torch.allclose(_shares_of_rows(x, t), exact, rtol=0, atol=1e-11)


def test_scaling_features_and_swapping_sets():
    """Rotation, one scale and shift change nothing; swapping the sets keeps all but the
    neighbours, which are asked of the second."""
    a, b = normal(40, 5), normal(40, 5, seed=1) + 0.5
    plain, moved, swapped = set_overlap(a, b), set_overlap(3 * a - 7, 3 * b - 7), set_overlap(b, a)
    for name in ("eta2", "energy", "cross_neighbours", "auc"):
        assert getattr(plain, name) == pytest.approx(getattr(moved, name), rel=1e-9), name
    for name in ("eta2", "energy"):
        assert getattr(plain, name) == pytest.approx(getattr(swapped, name), rel=1e-9), name


def test_collapse_is_the_ratio_of_eta2():
    """{0,2}: against {4,6} 16/20, against {6,8} 36/40: rho = 8/9, below 1: collapsed."""
    origin = torch.tensor([0.0, 2])
    local, reference = (origin, origin + 4), (origin, origin + 6)
    collapse = feature_collapse(local, reference)
    assert collapse.rho == pytest.approx(8 / 9)
    assert collapse.local.eta2 == pytest.approx(0.8)
    assert collapse.reference.eta2 == pytest.approx(0.9)
    assert math.isnan(feature_collapse(local, (origin, origin)).rho)


def test_centroids_by_hand():
    """Centroids 0, 4, 12 on a line, rows at +-1: mean distance (4 + 12 + 8)/3 = 8 over spread 1.
    Centroids 0, 1, 2 with rows at +-2: (1 + 2 + 1)/3 over 2 = 2/3. Ratio 1/12. A lonely row of
    class 9 is left out."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 9])
    reference = torch.tensor([-1.0, 1, 3, 5, 11, 13, 500])
    local = torch.tensor([-2.0, 2, -1, 3, 0, 4, -500])
    ratio = centroid_ratio(local, reference, labels)
    assert ratio.reference == pytest.approx(8)
    assert ratio.local == pytest.approx(2 / 3)
    assert ratio.value == pytest.approx(1 / 12)
    assert (ratio.classes, ratio.n) == (3, 6)


def test_degenerate_input():
    flat = torch.full((6, 3), 0.1)
    overlap = set_overlap(flat, flat)
    assert math.isnan(overlap.eta2)
    assert math.isnan(overlap.energy)
    assert overlap.auc == 0.5
    assert overlap.a_distance == 0
    assert overlap.cross_neighbours == pytest.approx(1)
    single = set_overlap(torch.zeros(1), torch.ones(1))
    assert single.eta2 == 1
    assert math.isnan(single.energy)
    lonely = torch.tensor([0, 1])
    assert math.isnan(centroid_ratio(torch.eye(2), torch.eye(2), lonely).value)
    same = torch.tensor([0, 0, 1, 1])
    assert math.isnan(centroid_ratio(flat[:4], torch.eye(4), same).value)
    assert math.isnan(centroid_ratio(torch.eye(4), flat[:4], same).value)
    with pytest.raises(BadInput, match="3 and 2 columns"):
        set_overlap(flat, torch.zeros(6, 2))
    with pytest.raises(BadInput, match="at least one neighbour"):
        set_overlap(flat, flat, k=0)
