"""Rows from updates, means and features, planted so that the answer is known."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from normals import normal
from torch import Tensor, nn

from fedloom.analysis import (
    Search,
    identify,
    invert_features,
    invert_update,
    rows_of_dense_layer,
    rows_of_means,
)
from fedloom.errors import BadInput


def first_layer_gradients(x: Tensor, units: int = 40) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    layer, head = nn.Linear(x.shape[1], units), nn.Linear(units, 3)
    y = torch.arange(len(x)) % 3
    loss = nn.functional.cross_entropy(head(layer(x).relu()), y)
    weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias])
    return weight, bias


# ------------------------------------------------------------------ algebra


def test_a_step_of_one_row_gives_the_row():
    row = normal(1, 12).float()
    found = rows_of_dense_layer(*first_layer_gradients(row))
    assert len(found) > 5
    assert torch.allclose(found, row.double().expand_as(found), atol=1e-4)


def test_of_several_rows_those_in_range_come_first():
    """Rows lie in 0..1; a unit that fired for two of them mixes them with weights of any sign."""
    x = torch.rand(6, 12, generator=torch.Generator().manual_seed(1))
    found = rows_of_dense_layer(*first_layer_gradients(x - 0.5), low=-0.5, high=0.5)
    outside = (found.abs() - 0.5).clamp_min(0).square().mean(1)
    assert torch.equal(outside, outside.sort().values)
    told = identify(found, x - 0.5, torch.rand(50, 12) - 0.5)
    assert told.exact
    few = rows_of_dense_layer(*first_layer_gradients(x - 0.5), low=-0.5, high=0.5, most=3)
    assert torch.equal(few, found[:3])


def test_enough_means_of_pairs_give_all_rows():
    """Of four rows all six pairs: a triangle among them has a unique solution."""
    x = normal(4, 3)
    pairs = torch.zeros(6, 4).double()
    for i, both in enumerate(combinations(range(4), 2)):
        pairs[i, list(both)] = 1
    solved = rows_of_means(pairs @ x / 2, pairs)
    assert solved.determined.all()
    assert torch.allclose(solved.rows, x, atol=1e-9)


def test_rows_drawn_twice_weigh_twice():
    """(2 a + b) / 3 and (a + 2 b) / 3."""
    x, counts = torch.tensor([[3.0], [6.0]]), torch.tensor([[2.0, 1], [1, 2]])
    solved = rows_of_means(torch.tensor([[4.0], [5.0]]), counts)
    assert torch.allclose(solved.rows, x.double())


def test_a_ring_of_four_pairs_is_not_determined():
    """a+b, b+c, c+d, d+a: adding e to a and c and taking it from b and d changes no mean. A fifth
    row that is alone in a mean is determined."""
    ring = torch.tensor(
        [[1.0, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    )
    x = normal(5, 3)
    solved = rows_of_means((ring / ring.sum(1, keepdim=True)).double() @ x, ring)
    assert solved.determined.tolist() == [False] * 4 + [True]
    assert torch.allclose(solved.rows[4], x[4])
    assert not torch.allclose(solved.rows[:4], x[:4], atol=1e-2)


# ------------------------------------------------------------------ search


def planted_network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 36, 3)
    )


def test_an_update_of_two_images_gives_both():
    net = planted_network()
    gen = torch.Generator().manual_seed(2)
    small = 2 * torch.rand(2, 1, 3, 3, generator=gen) - 1
    x, y = nn.functional.interpolate(small, 6, mode="bilinear"), torch.tensor([0, 2])

    def gradient(inputs: Tensor) -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(net(inputs), y)
        return torch.autograd.grad(loss, list(net.parameters()), create_graph=True)

    update = [0.05 * g for g in gradient(x)]
    found = invert_update(gradient, update, 2, (1, 6, 6), Search(steps=400, smooth=1e-4))
    assert float(found.mismatch) < 0.01
    others = 2 * torch.rand(200, 1, 6, 6, generator=gen) - 1
    assert identify(found.rows, x, others).rows == (0, 1)


def test_features_of_a_row_give_the_row():
    """36 pixels, 288 features: the row is the only one that has them."""
    net = planted_network()[:3]
    x = 2 * torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(3)) - 1
    with torch.no_grad():
        target = net(x)
    found = invert_features(net, target, (1, 6, 6), Search(steps=300))
    assert float(found.mismatch.max()) < 1e-3
    assert identify(found.rows, x, -x).rows == (0, 1, 2)


def test_the_best_start_is_each_rows_own():
    """x^3 = 1/2 is found from starts above 0 and hardly from below, where its slope goes through
    0; with four starts every row has one that is good."""
    target = torch.full((6, 1), 0.5)
    one = invert_features(lambda x: x.square() * x, target, (1,), Search(steps=100))
    many = invert_features(lambda x: x.square() * x, target, (1,), Search(steps=100, restarts=4))
    assert (many.mismatch <= one.mismatch + 1e-9).all()
    assert torch.allclose(many.rows, torch.full((6, 1), 0.5 ** (1 / 3)), atol=1e-2)


# ------------------------------------------------------------------ which row is it?


def test_a_mean_of_many_rows_points_to_nobody():
    x = normal(40, 30)
    told = identify(x.mean(0, keepdim=True), x[:20], x[20:])
    assert told.rows == told.mistaken == told.exact == ()


def test_noise_points_to_nobody_and_the_row_of_another_is_a_mistake():
    x = normal(60, 30)
    told = identify(torch.cat([x[40:41], normal(30, 30, seed=9)]), x[:20], x[20:])
    assert told.rows == ()
    assert told.mistaken == (20,)


def test_psnr_by_hand():
    """Rows 0 and 10 (range 10); a guess of 1 is 1 off: 10 log10(100 / 1)."""
    told = identify(torch.tensor([[1.0]]), torch.tensor([[0.0], [10.0]]), torch.tensor([[50.0]]))
    assert (told.rows, told.mse, told.psnr) == ((0,), 1.0, pytest.approx(20.0))


def test_bad_input():
    with pytest.raises(BadInput, match="one layer"):
        rows_of_dense_layer(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(BadInput, match="members"):
        rows_of_means(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(BadInput, match="points nowhere"):
        invert_update(lambda x: [x], [torch.zeros(2)], 1, (2,))
    with pytest.raises(BadInput, match="at least one step"):
        Search(steps=0)
