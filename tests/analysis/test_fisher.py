"""Fisher's ratio: values worked by hand, its noise, dead units, clients inside the global set."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import pytest
import torch
from normals import normal

from fedloom.analysis.fisher_ratio import (
    Moments,
    discriminant,
    fisher,
    fisher_to_global,
    fisher_within_classes,
    moments_of_classes,
)
from fedloom.errors import BadInput


def test_worked_by_hand():
    """{0,2} against {3,5}: (1 - 4)^2 / (1 + 1) = 4.5 with population variances; the second, equal
    dimension 0; the third, {0,4} against {1,1}: (2 - 1)^2 / 4 = .25. Mean 4.75/3."""
    a = torch.tensor([[0.0, 7, 0], [2, 9, 4]])
    b = torch.tensor([[3.0, 7, 1], [5, 9, 1]])
    ratio = fisher(a, b)
    assert ratio.ratios.tolist() == [4.5, 0, 0.25]
    assert ratio.largest == ratio.percentile90 == 4.5
    assert ratio.mean == pytest.approx(4.75 / 3)
    assert ratio.difference.tolist() == [-3, 0, 1]
    assert [v.tolist() for v in ratio.variances] == [[1, 1, 4], [1, 1, 0]]
    assert ratio.n == (2, 2)


def test_within_classes_is_the_mean_of_the_ratios_of_each_class():
    """Classes 0 and 2 have two rows or more on both sides; class 1 has one in the second set."""
    a, b = normal(9, 4), normal(8, 4, seed=1)
    a[:, 3] = b[:, 3] = 0.1  # varies in no class
    y_a, y_b = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), torch.tensor([0, 0, 1, 2, 2, 2, 2, 3])
    by_class = [fisher(a[y_a == c], b[y_b == c]).ratios for c in (0, 2)]
    within = fisher_within_classes(a, y_a, b, y_b, 4)
    assert torch.allclose(within.ratios, torch.stack(by_class).mean(0), rtol=1e-12)
    assert within.ratios[3] == 0
    assert within.classes.tolist() == [True, False, True, False]


def test_moments_of_all_rows_are_those_of_their_classes_together():
    """Five rows of class 0, one of class 1, none of 2, three of 3; the last dimension is dead."""
    x, y = normal(9, 4), torch.tensor([3, 0, 0, 1, 3, 0, 0, 3, 0])
    x[:, 3] = 0.1
    by_class = moments_of_classes(x, y, 4)
    assert {c: own.n for c, own in by_class.items()} == {0: 5, 1: 1, 3: 3}
    together, whole = reduce(add, by_class.values()), Moments.of(x)
    assert together.n == 9
    assert torch.allclose(together.mean, whole.mean, rtol=1e-12)
    assert torch.allclose(together.variance, whole.variance, rtol=1e-12)
    assert fisher(together, whole).dead == 1


def test_one_shifted_dimension_of_ten():
    """Unit Gaussians 2 apart in one dimension: 4/2 = 2; the others about 1/n = .0005."""
    a, b = normal(2000, 10), normal(2000, 10, seed=1)
    b[:, 3] += 2
    ratio = fisher(a, b)
    assert int(ratio.ratios.argmax()) == 3
    assert ratio.largest == pytest.approx(2, abs=0.25)
    rest = torch.cat([ratio.ratios[:3], ratio.ratios[4:]])
    assert float(rest.mean()) == pytest.approx(1 / 2000, abs=5e-4)
    assert ratio.null_mean == pytest.approx(1 / 2000)


def test_a_set_against_itself_and_affine_maps():
    a, b = normal(50, 6), normal(30, 6, seed=1) + 0.3
    assert fisher(a, a).largest == 0
    scale, shift = normal(6, seed=2) * 10, normal(6, seed=3) * 5
    assert torch.allclose(fisher(a * scale + shift, b * scale + shift).ratios, fisher(a, b).ratios)


def test_noise_of_the_mean_and_of_the_largest():
    """d = 512, n = 100: mean ratio .01; largest (2 ln d - ln ln d - ln pi + 1.15)/n = .107, the
    exact integral .109. One dimension: the mean of chi-square. Two: E max = 1 + E|X - Y|/2, and
    X - Y = (Z - W)(Z + W) = 2 U V with independent standard U, V: 1 + 2/pi.
    """
    comparisons = [
        fisher(normal(100, 512, seed=s), normal(100, 512, seed=s + 50)) for s in range(20)
    ]
    assert sum(one.mean for one in comparisons) / 20 == pytest.approx(0.0101, abs=3e-4)
    assert sum(one.largest for one in comparisons) / 20 == pytest.approx(
        comparisons[0].null_largest, rel=0.05
    )
    assert comparisons[0].null_largest == pytest.approx(0.107, abs=0.003)
    ten = torch.zeros(10, 2) + torch.arange(10.0)[:, None]
    assert fisher(ten, ten).null_largest == pytest.approx(0.1 * (1 + 2 / math.pi), rel=1e-5)
    assert fisher(ten[:, :1], ten[:, :1]).null_largest == pytest.approx(0.1, rel=1e-5)


def test_dead_units_are_zero_or_infinite_and_counted():
    """Constant 0.1 (no binary number, different counts) on both sides: 0; 1 against 2: infinite."""
    a = torch.tensor([[0.1, 1.0, 0.0]], dtype=torch.float64).repeat(7, 1) + torch.tensor([0, 0, 1])
    b = torch.tensor([[0.1, 2.0, 0.0]], dtype=torch.float64).repeat(9, 1)
    b[:, 2] = torch.arange(9)
    ratio = fisher(a, b)
    assert ratio.ratios[0] == 0
    assert ratio.ratios[1] == math.inf
    assert ratio.ratios[2] == pytest.approx(9 / (60 / 9))  # (1 - 4)^2 / (0 + 60/9)
    assert (ratio.dead, ratio.largest) == (2, math.inf)
    whole = fisher_to_global([a, b, a], leave_one_out=False)
    assert all(one.ratios[0] == 0 for one in whole)


def test_moments_add_up_to_those_of_the_union():
    """Far from zero, where sums of squares would lose all digits."""
    parts = [normal(n, 4, seed=n) * 1e-3 + 1e5 for n in (1, 5, 40)]
    union, added = torch.cat(parts), reduce(add, map(Moments.of, parts))
    assert added.n == 46
    assert torch.allclose(added.mean, union.mean(0), rtol=1e-14)
    assert torch.allclose(added.variance, union.var(0, correction=0), rtol=1e-6)
    a = normal(9, 4)
    assert torch.equal(fisher(Moments.of(a), parts[2]).ratios, fisher(a, parts[2]).ratios)


def test_a_client_inside_the_global_set_shortens_its_own_difference():
    """n_i = 25 of 100: the mean difference to everybody is 3/4 of that to the others."""
    clients = [normal(n, 5, seed=n) + n / 20 for n in (25, 35, 40)]
    inside, outside = fisher_to_global(clients), fisher_to_global(clients, leave_one_out=True)
    assert torch.allclose(inside[0].difference, outside[0].difference * 0.75)
    others = fisher(clients[0], torch.cat(clients[1:]))
    assert torch.allclose(outside[0].ratios, others.ratios)
    assert (inside[0].n, outside[0].n) == ((25, 100), (25, 75))


def test_noise_of_a_client_inside_the_global_set():
    """Var(mean_i - mean) = sigma^2 (1/n_i - 1/n): with 50 of 100, (1/50 - 1/100)/2 = .005, where
    independent sets would have .015."""
    ratio = fisher_to_global([normal(50, 4000), normal(50, 4000, seed=1)])[0]
    assert ratio.null_mean == pytest.approx(0.005)
    assert ratio.mean == pytest.approx(0.005, rel=0.1)


def test_within_classes_the_label_mix_plays_no_part():
    """Same law per class, classes 10 apart, shares 9:1 and 1:9: the plain ratio is large, the one
    within classes noise. The noise is the mean over classes of (1/m_a + 1/m_b)/2."""
    y_a = torch.tensor([0] * 900 + [1] * 100)
    y_b = 1 - y_a
    a, b = normal(1000, 50) + 10 * y_a[:, None], normal(1000, 50, seed=1) + 10 * y_b[:, None]
    assert fisher(a, b).mean > 1
    within = fisher_within_classes(a, y_a, b, y_b, 3)
    assert within.classes.tolist() == [True, True, False]
    assert within.null_mean == pytest.approx((1 / 900 + 1 / 100) / 2)
    assert within.mean == pytest.approx(within.null_mean, rel=0.3)
    shifted = fisher_within_classes(a, y_a, b + 1, y_b, 3)
    assert shifted.mean == pytest.approx(0.5, abs=0.05)  # 1 / (1 + 1)


def test_no_shared_class_is_nan():
    zeros, ones = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    within = fisher_within_classes(normal(4, 2), zeros, normal(4, 2), ones, 2)
    assert math.isnan(within.mean)
    assert math.isnan(within.largest)
    assert not within.classes.any()


def test_discriminant_by_hand():
    """Rows (1,1), (-1,-1) twice, and (.5,-.5), (-.5,.5) twice: covariance a = [[.625,.375],
    [.375,.625]], eigenvalue 1 along (1,1), .25 along (1,-1). b is a shifted by (1,-1), which has
    squared length 2: without shrinkage 2 / (2 * .25) = 4. Shrinkage 1 leaves the mean variance
    2 * .625: 2 / 1.25 = 1.6. Half: eigenvalue (.5 + 1.25)/2: 2 / .875. The largest single ratio
    is 1 / 1.25 and sees nothing of it.
    """
    a = torch.tensor([[1.0, 1], [-1, -1], [0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64)
    b = a + torch.tensor([1.0, -1.0])
    assert fisher(a, b).largest == pytest.approx(0.8)
    assert discriminant(a, b, shrinkage=0).value == pytest.approx(4)
    assert discriminant(a, b, shrinkage=1).value == pytest.approx(1.6)
    assert discriminant(a, b, shrinkage=0.5).value == pytest.approx(2 / 0.875)
    dead = torch.cat([a, torch.full((4, 1), 0.1)], 1), torch.cat([b, torch.full((4, 1), 0.1)], 1)
    assert discriminant(*dead, shrinkage=0.5).value == pytest.approx(2 / 0.875)


def test_discriminant_noise():
    """Two samples of one law, n = 400, d = 10: tr(S^-1 Cov of the difference), near d/n = .025."""
    discriminants = [
        discriminant(normal(400, 10, seed=s), normal(400, 10, seed=s + 99)) for s in range(40)
    ]
    mean = sum(one.value for one in discriminants) / 40
    assert mean == pytest.approx(0.025, rel=0.2)
    assert discriminants[0].null == pytest.approx(0.025, rel=0.05)


def test_degenerate_input():
    one = normal(1, 3)
    assert fisher(one, one).largest == 0
    assert fisher(one, one + 1).largest == math.inf
    assert math.isnan(discriminant(one, normal(4, 3)).value)
    assert math.isnan(discriminant(torch.ones(4, 3), torch.ones(4, 3)).value)
    with pytest.raises(BadInput, match="3 and 2 columns"):
        fisher(one, normal(4, 2))
    with pytest.raises(BadInput, match="two or more"):
        fisher_to_global([one])
    with pytest.raises(BadInput, match=r"0\.\.1"):
        discriminant(one, one, shrinkage=2)
