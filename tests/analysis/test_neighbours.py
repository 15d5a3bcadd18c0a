"""Neighbour purity and silhouette, in the original space."""

from __future__ import annotations

import math

import pytest
import torch
from normals import normal

from fedloom.analysis.neighbours import neighbour_purity, purity_within_classes, silhouette
from fedloom.errors import BadInput

GROUPS = torch.repeat_interleave(torch.arange(3), torch.tensor([300, 180, 120]))


def test_three_mixed_groups_have_the_purity_of_chance():
    """Shares .5, .3, .2: .25 + .09 + .04 = .38; the null leaves the row itself out."""
    purity = neighbour_purity(normal(600, 8), GROUPS)
    assert purity.value == pytest.approx(0.38, abs=0.02)
    exact = (300 * 299 + 180 * 179 + 120 * 119) / (600 * 599)
    assert purity.null == pytest.approx(exact, rel=1e-12)
    assert purity.null == pytest.approx(0.38, abs=0.002)


def test_groups_far_apart_are_pure():
    assert neighbour_purity(normal(600, 8) + 100 * GROUPS[:, None], GROUPS).value == 1


def test_worked_by_hand():
    """On a line at 0, 1, 3, 7 in groups a, a, b, a with two neighbours: 0 sees 1, 3 (1/2); 1 sees
    0, 3 (1/2); 3 sees 1, 0 (0); 7 sees 3, 1 (1/2): mean 3/8. Null: 3*2/(4*3) = 1/2."""
    purity = neighbour_purity(torch.tensor([0.0, 1, 3, 7]), torch.tensor([0, 0, 1, 0]), k=2)
    assert purity.value == pytest.approx(3 / 8)
    assert purity.null == pytest.approx(1 / 2)


def test_ties_share_what_is_left():
    """Row 0 has two others equally far, one of them of its group: half, whatever the order. The
    two ends have row 0 as nearest: the first is of its group, the other not. Mean 1/2."""
    z, groups = torch.tensor([0.0, -1, 1]), torch.tensor([0, 0, 1])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert neighbour_purity(z[order], groups[order], k=1).value == pytest.approx(0.5)


def test_constant_features_have_exactly_the_purity_of_chance():
    """All distances are equal, so every other row is a neighbour in equal part."""
    purity = neighbour_purity(torch.full((600, 2), 0.1), GROUPS)
    assert purity.value == pytest.approx(purity.null, rel=1e-12)


def test_within_classes_the_label_mix_plays_no_part():
    """Two clients with one extractor but label shares 9:1 and 1:9, classes far apart: the plain
    client purity is near .82, the one within classes near chance."""
    sizes = torch.tensor([180, 20, 20, 180])
    labels = torch.repeat_interleave(torch.tensor([0, 1, 0, 1]), sizes)
    clients = torch.repeat_interleave(torch.tensor([0, 0, 1, 1]), sizes)
    z = normal(400, 4) + 50 * labels[:, None]
    plain, within = neighbour_purity(z, clients), purity_within_classes(z, clients, labels)
    assert plain.value == pytest.approx(0.82, abs=0.02)
    assert plain.null == pytest.approx(0.5, abs=0.002)
    assert within.value == pytest.approx(within.null, abs=0.02)
    moved = purity_within_classes(z + 5 * clients[:, None], clients, labels)
    assert moved.value > 0.99


def test_a_class_of_one_row_has_no_neighbours_and_small_ones_have_fewer():
    """Class 1 holds one row and is left out; class 0 has three rows, two neighbours each: all
    three rows of it are of two clients 0, 0, 1, shares 1/2, 1/2, 0."""
    z, clients = torch.tensor([0.0, 1, 2, 9]), torch.tensor([0, 0, 1, 1])
    purity = purity_within_classes(z, clients, torch.tensor([0, 0, 0, 1]))
    assert purity.n == 3
    assert purity.value == pytest.approx(1 / 3)
    assert purity.null == pytest.approx(1 / 3)


def test_silhouette_by_hand():
    """Groups {0, 1} and {4, 5}: a = 1; b = 4.5 and 3.5. (1 - 1/4.5 + 1 - 1/3.5)/2."""
    value = silhouette(torch.tensor([0.0, 1, 4, 5]), torch.tensor([3, 3, 8, 8]))
    assert value == pytest.approx(1 - (1 / 4.5 + 1 / 3.5) / 2)


def test_degenerate_input():
    one = torch.zeros(1, 3)
    assert math.isnan(neighbour_purity(one, torch.tensor([0])).value)
    assert math.isnan(silhouette(one, torch.tensor([0])))
    assert math.isnan(silhouette(torch.eye(3), torch.tensor([0, 0, 0])))
    assert math.isnan(silhouette(torch.eye(3), torch.tensor([0, 1, 2])))
    assert silhouette(torch.full((4, 2), 0.1), torch.tensor([0, 0, 1, 1])) == 0
    with pytest.raises(BadInput, match="at least one neighbour"):
        neighbour_purity(torch.eye(3), torch.tensor([0, 1, 2]), k=0)
