"""Linear CKA: values worked by hand, its invariances, its noise and its failures."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal
from torch import Tensor

from fedloom.analysis.cka import cka_between_clients, linear_cka
from fedloom.errors import BadInput

CROSS = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)


def u_centred(x: Tensor) -> Tensor:
    """The Gram matrix centred step by step as the definition says."""
    gram = (x @ x.T).fill_diagonal_(0)
    n = len(gram)
    m = gram.sum(0) / (n - 2)
    m = m - m.sum() / (2 * (n - 1))
    return (gram - m[:, None] - m).fill_diagonal_(0)


def test_worked_by_hand():
    """X'X = 2I, |X'X| = 2 sqrt 2. Against its first column a: X'a = (2, 0), a'a = 2, so
    4 / (2 sqrt 2 * 2) = 1/sqrt 2. First against second column: X'a has a zero, 0. Against
    X diag(3, 1): X'Y = diag(6, 2), Y'Y = diag(18, 2): 40 / (2 sqrt 2 sqrt 328) = 10/sqrt 164.
    """
    assert linear_cka(CROSS, CROSS[:, 0]).value == pytest.approx(1 / math.sqrt(2))
    assert linear_cka(CROSS[:, 0], CROSS[:, 1]).value == 0
    stretched = linear_cka(CROSS, CROSS * torch.tensor([3.0, 1.0]))
    assert stretched.value == pytest.approx(10 / math.sqrt(164))
    assert stretched.n == 4


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("columns", [6, 60])
def test_rotation_scale_and_shift_change_nothing_but_a_stretch_does(columns, debiased):
    x = normal(30, columns)
    turn = torch.linalg.qr(normal(columns, columns, seed=1)).Q
    assert linear_cka(x, 3 * x @ turn + 5, debiased).value == pytest.approx(1, abs=1e-9)
    stretch = torch.linspace(0.1, 5, columns)
    assert linear_cka(x, x * stretch, debiased).value < 0.99


def test_wide_features_go_through_gram_matrices_to_the_same_value():
    """Forty zero columns change no inner product but make d > n."""
    x, y = normal(30, 6), normal(30, 9, seed=1)
    padded = torch.cat([x, torch.zeros(30, 40)], 1)
    assert linear_cka(padded, y).value == pytest.approx(linear_cka(x, y).value, rel=1e-12)


def test_debiased_is_the_inner_product_of_u_centred_grams():
    """The definition, step by step, against the closed form from the centred matrices."""
    for columns in (4, 50):
        x, y = normal(20, columns) + 3, normal(20, 5, seed=1)
        k, other = u_centred(x), u_centred(y)
        expected = (k * other).sum() / (k.norm() * other.norm())
        assert linear_cka(x, y, debiased=True).value == pytest.approx(float(expected), rel=1e-9)


def test_independent_features_with_few_rows():
    """p = q = 64, n = 100: 64/164 = .3902 in the mean, and near 0 debiased. The null of shuffled
    rows, tr K tr L / ((n-1) |K| |L|), is the same number from the data."""
    alignments = [
        linear_cka(normal(100, 64, seed=s), normal(100, 64, seed=s + 99)) for s in range(20)
    ]
    assert sum(one.value for one in alignments) / 20 == pytest.approx(64 / 164, abs=0.003)
    assert sum(one.null for one in alignments) / 20 == pytest.approx(64 / 164, abs=0.003)
    fair = [
        linear_cka(normal(100, 64, seed=s), normal(100, 64, seed=s + 99), True) for s in range(20)
    ]
    assert abs(sum(one.value for one in fair) / 20) < 0.01
    assert fair[0].null == 0


def test_the_null_is_the_mean_over_all_orders_of_the_rows():
    """Five rows, all 120 orders of one side: the mean of CKA equals the null."""
    from itertools import permutations

    x, y = normal(5, 3) * torch.tensor([3.0, 1, 0.2]), normal(5, 2, seed=1)
    values = [linear_cka(x, y[list(order)]).value for order in permutations(range(5))]
    assert linear_cka(x, y).null == pytest.approx(sum(values) / 120, rel=1e-9)
    fair = [linear_cka(x, y[list(order)], True).value for order in permutations(range(5))]
    assert abs(sum(fair) / 120) < 1e-9


def test_shuffled_rows_lose_the_alignment():
    """n = 500, d = 16: about 16/516 = .031."""
    x = normal(500, 16)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(2))
    cka = linear_cka(x, x[order])
    assert cka.value == pytest.approx(16 / 516, abs=0.005)
    assert cka.null == pytest.approx(16 / 516, abs=0.001)


def test_one_huge_shared_direction_hides_all_others():
    shared = 1e4 * normal(200, 1, seed=5)
    x, y = normal(200, 8), normal(200, 8, seed=1)
    assert linear_cka(x, y).value < 0.1
    assert linear_cka(torch.cat([x, shared], 1), torch.cat([y, shared], 1)).value > 0.9999


def test_matrix_of_clients_is_the_pairs_and_its_mean_leaves_the_diagonal_out():
    """Three clients with unlike widths; two are equal up to scale, so one pair is 1."""
    x, y = normal(40, 5), normal(40, 7, seed=1)
    pairs = cka_between_clients([x, y, -2 * x])
    pair = linear_cka(x, y).value
    expected = torch.tensor([[1, pair, 1], [pair, 1, pair], [1, pair, 1]], dtype=torch.float64)
    assert torch.allclose(pairs.matrix, expected, atol=1e-12)
    assert pairs.mean == pytest.approx((1 + 2 * pair) / 3)


@pytest.mark.parametrize("debiased", [False, True])
def test_degenerate_features_give_nan(debiased):
    """Constant (0.1 is no binary number), one row, and debiased with all rows equally far: the
    U-centred Gram matrix of a simplex is zero."""
    x = normal(7, 3)
    assert math.isnan(linear_cka(torch.full((7, 2), 0.1), x, debiased).value)
    assert math.isnan(linear_cka(x[:1], x[:1], debiased).value)
    if debiased:
        assert math.isnan(linear_cka(torch.eye(7), x, debiased).value)
        assert math.isnan(linear_cka(x[:3], x[:3], debiased).value)


def test_other_inputs_are_refused():
    with pytest.raises(BadInput, match="3 and 4 rows"):
        linear_cka(CROSS, CROSS[:3])
    with pytest.raises(BadInput, match="two or more"):
        cka_between_clients([CROSS])
