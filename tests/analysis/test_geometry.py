"""Linear algebra that the diagnostics share."""

from __future__ import annotations

import pytest
import torch
from normals import normal

from fedloom.analysis.geometry import (
    PANEL,
    centred,
    gram_matrix,
    in_few_columns,
    principal_components,
    squared_distances,
)


@pytest.mark.parametrize("rows", [1, PANEL - 1, PANEL, PANEL + 1, 2 * PANEL, 3 * PANEL - 5])
def test_a_gram_matrix_by_panels_is_that_of_one_product(rows):
    """Also where the last panel is short, or there are fewer rows than one has."""
    x = normal(rows, 7)
    assert torch.allclose(gram_matrix(x), x @ x.T, rtol=0, atol=1e-13)


def test_few_columns_keep_inner_products_of_rows_that_depend_on_each_other():
    """Rows given twice, rows of zeros and one direction only have no full Cholesky factor."""
    twice = normal(6, 30).repeat(2, 1)
    zeros = torch.cat([normal(6, 30), torch.zeros(4, 30)])
    line = torch.outer(torch.arange(5.0), torch.arange(40.0)).double()
    for x in (twice, zeros, line, torch.zeros(3, 8, dtype=torch.float64)):
        few = in_few_columns(x)
        assert few.shape == (len(x), len(x))
        size = max(1.0, float(x.square().sum()))
        assert torch.allclose(few @ few.T, x @ x.T, rtol=0, atol=1e-13 * size)
    narrow = normal(9, 4)
    assert in_few_columns(narrow) is narrow


def test_a_column_constant_but_for_rounding_is_exactly_zero():
    """The mean of seven times 0.1 is off by one bit; a spread of 1e-9 of the size is real."""
    column = torch.full((7,), 0.1, dtype=torch.float64)
    assert (column - column.mean()).any()
    tiny = 1e3 + 1e-6 * normal(7, 1)
    assert not centred(torch.stack([column * 1e6 / 3, column], 1)).any()
    assert centred(tiny).any()


def test_squared_distances_far_from_the_origin():
    """Shifting all rows by 1e6 must not cost the digits of distances near 1."""
    x = normal(40, 5)
    plain = (x[:, None] - x).square().sum(2)
    assert torch.allclose(squared_distances(x), plain, rtol=0, atol=1e-12)
    assert torch.allclose(squared_distances(x + 1e6), plain, rtol=0, atol=1e-7)


def test_principal_components_are_the_same_from_either_side():
    """A wide matrix (eigenvectors of XX') and the same rows turned into fewer columns (of X'X)."""
    wide = normal(12, 40) * torch.linspace(3, 0.1, 40)
    narrow = torch.linalg.qr(centred(wide).T, mode="r").R.T  # the same Gram matrix, 12 columns
    (a, share), (b, other) = principal_components(wide, 4), principal_components(narrow, 4)
    assert torch.allclose(a, b, atol=1e-10)
    assert abs(share - other) < 1e-12
    spectrum = torch.linalg.svdvals(centred(wide)).square()
    assert abs(share - float(spectrum[:4].sum() / spectrum.sum())) < 1e-12
    assert torch.allclose(a.square().sum(0), spectrum[:4])


def test_few_columns_keep_a_row_behind_one_that_nearly_repeats():
    """e1, e1 + 1e-7 e2, e2: the second row's column is as small as rounding where it stands, and
    holds the third row's direction."""
    x = torch.zeros(3, 5, dtype=torch.float64)
    x[0, 0] = x[1, 0] = x[2, 1] = 1
    x[1, 1] = 1e-7
    few = in_few_columns(x)
    assert torch.allclose(few @ few.T, x @ x.T, rtol=0, atol=1e-12)


def test_a_component_has_one_sign():
    """Negating the rows negates all scores; the largest score stays positive."""
    x = normal(12, 4)
    scores = principal_components(x, 4)[0]
    assert torch.allclose(scores, principal_components(-x, 4)[0])
    assert torch.equal(scores.amax(0), scores.abs().amax(0))


def test_no_more_components_than_there_are():
    assert principal_components(normal(3, 9), 50)[0].shape == (3, 3)
    assert principal_components(normal(1, 2), 2)[0].tolist() == [[0]]


@pytest.mark.parametrize("rank", [9, 4])
def test_few_columns_keep_inner_products_with_the_rows_that_span_them(rank: int):
    """Also where these rows depend on each other, and where the others do not lie in their span."""
    x = torch.cat([normal(9, rank) @ normal(rank, 40), normal(11, 40)])
    few = in_few_columns(x, 9)
    assert few.shape == (20, 9)
    assert torch.allclose(few @ few[:9].T, x @ x[:9].T, rtol=0, atol=1e-11)


def test_few_columns_are_as_many_as_rows_where_those_that_span_hide_a_direction():
    """The second row is e1 + 5e-8 e2 and the others' e2 shows only there; or nothing spans."""
    x = torch.zeros(4, 8, dtype=torch.float64)
    x[0, 0] = x[1, 0] = x[2, 1] = x[3, 2] = 1
    x[1, 1] = 5e-8
    for rows, spanning in ((x, 2), (torch.zeros_like(x), 2)):
        few = in_few_columns(rows, spanning)
        assert few.shape == (4, 4)
        assert torch.allclose(few @ few.T, rows @ rows.T, rtol=0, atol=1e-12)
