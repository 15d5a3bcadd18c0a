"""FedDecorr: correlation matrices by hand.

Columns (1, -1, 0) and (1, 0, -1) have variance 2/3 and covariance 1/3, so their correlation is 1/2
and ||K||_F^2 / d^2 = (1 + 1 + 1/4 + 1/4) / 4 = 5/8.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from sums import model, runs_with_fedbr_and_dbe
from torch import nn

from fedloom.core.data import ClientData
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.errors import BadInput
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.feddecorr import FedDecorr, correlation
from helpers import Table, Tables, run, same

Z = torch.tensor([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)


def test_by_hand():
    assert correlation(Z).item() == pytest.approx(5 / 8, abs=1e-6)


def test_neither_scale_nor_shift_counts():
    moved = Z * torch.tensor([10.0, -3.0]) + torch.tensor([5.0, -7.0])
    assert correlation(moved).item() == pytest.approx(5 / 8, abs=1e-6)


def test_least_without_correlation_and_most_when_all_are_one():
    """K = I: d / d^2 = 1/2; all columns alike: d^2 / d^2 = 1."""
    square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert correlation(square).item() == pytest.approx(1 / 2, abs=1e-6)
    assert correlation(square[:, [0, 0]]).item() == pytest.approx(1.0, abs=1e-6)


def test_the_published_code_is_about_n_times_larger():
    """Variances with n - 1 are 1, so z^'z^ has 1 off the diagonal: mean of squares 1, over n = 3.
    In general (n - 1)^2 / n times the squared correlation."""
    assert correlation(Z, published=True).item() == pytest.approx(1 / 3, abs=1e-6)


def test_a_constant_dimension_correlates_with_nothing():
    """K = diag(1, 0): 1/4; the gradient is finite, though 0.1 has no exact mean of three."""
    z = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [0.0, 0.1]]).requires_grad_()
    for published in (False, True):
        loss = correlation(z, published)
        (g,) = torch.autograd.grad(loss, z)
        assert loss.item() == pytest.approx(0.0 if published else 1 / 4, abs=1e-5)
        assert g.abs().max() < 1e-3


@pytest.mark.parametrize("published", [False, True])
def test_few_rows_of_many_dimensions(published):
    """Z Z' has the norm of Z' Z: value and gradient are those of the matrix of correlations."""
    z = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z.requires_grad_()
    n, d = z.shape
    value = correlation(z, published)
    k = torch.corrcoef(z.T)
    if published:
        expected = (n - 1) ** 2 / n * (k.square().sum() - d) / (d * (d - 1))
    else:
        expected = k.square().sum() / d**2
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    (a,), (b,) = (torch.autograd.grad(loss, z) for loss in (value, expected))
    assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


def test_no_matrix_of_all_pairs_of_dimensions():
    """Two rows: every correlation is 1 or -1. The matrix would have 4e10 entries."""
    z = torch.randn(2, 200_000, generator=torch.Generator().manual_seed(0)) + torch.eye(2, 1) * 9
    assert correlation(z).item() == pytest.approx(1.0, abs=1e-3)


def test_it_acts_on_features_and_not_on_logits():
    """Features are the rows Z, the head is zero: ln 2 + 0.1 * 5/8 = the logged loss."""
    body, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    with torch.no_grad():
        body.weight.copy_(torch.eye(2))
        head.weight.zero_()
        head.bias.zero_()
    data = ClientData(Table(Z.float(), torch.tensor([0, 1, 0])), None, None, 2)
    method = replace(FedAvg() + FedDecorr(), opt=Opt(lr=0.5, batch=3))
    program = Program(method, Net((2,), body=body, head=head), 1)
    up = run(program, Tables([data]), 1).answers[0].up
    assert up.metrics["loss"] == pytest.approx(log(2) + 0.1 * 5 / 8, rel=1e-5)
    assert not torch.equal(up.state["model"]["body.weight"], torch.eye(2))


def test_batches_of_one_add_nothing():
    single = Opt(lr=0.1, batch=1)
    assert same(model(FedAvg() + FedDecorr(), opt=single), model(FedAvg(), opt=single))


def test_beta_0_is_fedavg():
    assert same(model(FedAvg() + FedDecorr(beta=0.0)), model(FedAvg()))
    assert not same(model(FedAvg() + FedDecorr()), model(FedAvg()))


def test_ranges():
    with pytest.raises(BadInput, match="beta"):
        FedDecorr(beta=-0.1)


def test_composes():
    """And has its say in the sum."""
    runs_with_fedbr_and_dbe("fedavg", "feddecorr")
    assert not same(model("fedavg + feddecorr + dbe"), model("fedavg + dbe"))
