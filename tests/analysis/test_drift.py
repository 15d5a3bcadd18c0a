"""Feature drift on the same inputs."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal

from fedloom.analysis.drift import drift_of, feature_drift, row_drift
from fedloom.analysis.geometry import FewColumns
from fedloom.errors import BadInput


@pytest.mark.parametrize("columns", [5, 80])
def test_no_drift_is_zero(columns):
    z = normal(40, columns)
    drift = feature_drift(z, z.clone())
    assert (drift.cosine, drift.relative) == (0, 0)
    assert drift.cka == pytest.approx(0, abs=1e-12)
    assert drift.procrustes == pytest.approx(0, abs=1e-12)
    assert drift.n == 40


def test_a_shift_moves_coordinates_only():
    """D_rel = n |t|^2 / SS; |t|^2 = 9 and d = 16 unit variances: near 9/16 = .56. CKA and
    Procrustes centre it away."""
    z, t = normal(2000, 16), torch.full((16,), 0.75, dtype=torch.float64)
    drift = feature_drift(z + t, z)
    spread = float((z - z.mean(0)).square().sum())
    assert drift.relative == pytest.approx(2000 * 9 / spread, rel=1e-12)
    assert drift.relative == pytest.approx(9 / 16, rel=0.03)
    assert drift.cka == pytest.approx(0, abs=1e-10)
    assert drift.procrustes == pytest.approx(0, abs=1e-10)


def test_twice_and_minus():
    """2F: same directions, D_rel = |F|^2 / SS. -F: cosine 2, D_rel = 4 |F|^2 / SS."""
    z = normal(50, 4) + 1
    size = float(z.square().sum() / (z - z.mean(0)).square().sum())
    twice, minus = feature_drift(2 * z, z), feature_drift(-z, z)
    assert twice.cosine == pytest.approx(0, abs=1e-15)
    assert twice.relative == pytest.approx(size)
    assert minus.cosine == pytest.approx(2)
    assert minus.relative == pytest.approx(4 * size)


@pytest.mark.parametrize("columns", [6, 90])
def test_a_rotation_is_seen_only_by_the_coordinates(columns):
    """A random turn makes D_rel near 2, while Procrustes and CKA are 0."""
    z = normal(60, columns)
    turn = torch.linalg.qr(normal(columns, columns, seed=1)).Q
    drift = feature_drift(z @ turn, z)
    assert drift.relative > 1
    assert drift.procrustes == pytest.approx(0, abs=1e-10)
    assert drift.cka == pytest.approx(0, abs=1e-10)


def test_procrustes_by_hand():
    """Columns (1,-1,0,0)/sqrt 2 and (0,0,1,-1)/sqrt 2, orthonormal and centred. A has norms 1, 1,
    so A/sqrt 2; B has 1, 3, so B/sqrt 10. |A'B|_* = (1 + 3)/sqrt 20: 2 - 8/sqrt 20. CKA of the
    same: squares (1 + 9)/20 over (sqrt 2 / 2)(sqrt 82 / 10)."""
    a = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64) / math.sqrt(2)
    drift = feature_drift(a * torch.tensor([1.0, 3.0]), a)
    assert drift.procrustes == pytest.approx(2 - 8 / math.sqrt(20))
    assert drift.cka == pytest.approx(1 - 0.5 / (math.sqrt(2) / 2 * math.sqrt(82) / 10))


def test_wide_features_have_the_same_procrustes_distance():
    """Zero columns change nothing but make d > n."""
    a, b = normal(20, 6), normal(20, 6, seed=1)
    zeros = torch.zeros(20, 30)
    wide = feature_drift(torch.cat([a, zeros], 1), torch.cat([b, zeros], 1))
    assert wide.procrustes == pytest.approx(feature_drift(a, b).procrustes, rel=1e-10)


def test_drift_of_some_rows_from_few_columns_of_all():
    """What a study does: turn all rows once, then look at some of them. The same as from those
    rows' features, of full rank or with rows given twice."""
    start = normal(40, 90)
    start[5] = start[6]
    moved = start + 0.3 * normal(40, 90, seed=1)
    moved[7] = moved[8]
    some = torch.arange(40) % 3 > 0
    turned = [FewColumns.of(z) for z in (moved, start)]
    drift = drift_of(*(z.among(some) for z in turned), row_drift(moved, start)[some])
    direct = feature_drift(moved[some], start[some])
    assert drift.n == direct.n == int(some.sum())
    for name in ("cosine", "relative", "cka", "procrustes", "null_cka"):
        assert getattr(drift, name) == pytest.approx(getattr(direct, name), rel=1e-7), name


def test_unrelated_features_reach_the_null():
    drift = feature_drift(normal(400, 8), normal(400, 8, seed=1))
    assert drift.null_cka == pytest.approx(1 - 8 / 408, abs=0.003)
    assert drift.cka == pytest.approx(drift.null_cka, abs=0.02)


def test_without_common_coordinates_only_the_invariant_ones_are_given():
    drift = feature_drift(normal(30, 4), normal(30, 7, seed=1), common_coordinates=False)
    assert math.isnan(drift.cosine)
    assert math.isnan(drift.relative)
    assert 0 < drift.cka < 1
    assert 0 < drift.procrustes < 2
    with pytest.raises(BadInput, match="4 and 7 columns"):
        feature_drift(normal(30, 4), normal(30, 7))


def test_degenerate_features():
    """Constant reference: no spread to compare with. A zero row has no direction and is counted."""
    z = normal(5, 3)
    flat = feature_drift(z, torch.full((5, 3), 0.1))
    assert math.isnan(flat.relative)
    assert math.isnan(flat.cka)
    assert math.isnan(flat.procrustes)
    assert 0 <= flat.cosine <= 2
    dead = z.clone()
    dead[0] = 0
    drift = feature_drift(dead, z)
    assert (drift.zero_rows, drift.cosine) == (1, 0)
    assert math.isnan(feature_drift(torch.zeros(2, 3), z[:2]).cosine)
    assert math.isnan(feature_drift(z[:1], z[:1]).relative)
    with pytest.raises(BadInput, match="4 and 5 rows"):
        feature_drift(z[:4], z)
