"""VHL: the loss by hand, the virtual data, and what must not travel."""

from __future__ import annotations

from dataclasses import replace
from math import e, log

import pytest
import torch
from sums import OPT, model, played, runs_with_fedbr_and_dbe
from torch import nn

from fedloom.core.data import ClientData
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.errors import BadInput
from fedloom.method_tools import virtual_data as module
from fedloom.method_tools.virtual_data import VirtualData, virtual_data
from fedloom.methods import parse_method, vhl
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.vhl import VHL
from helpers import Table, Tables, run, same

FEW = VHL(per_class=5)


@pytest.mark.parametrize(("alpha", "lam"), [(1.0, 1.0), (0.5, 3.0), (2.0, 0.0), (0.0, 1.0)])
def test_loss_by_hand(alpha, lam, monkeypatch):
    """Features are the inputs, the head is zero, tau = 1. Real rows (1, 0) of class 0 and (0, 1)
    of class 1, one virtual row (0, 1) of class 1.

    Every cross-entropy is ln 2. SupCon over the three rows: the first is alone in its class and
    adds 0; of the other two each has the other at cosine 1 and the first at cosine 0, so
    -log e/(e + 1) = log(1 + 1/e); mean 2/3 log(1 + 1/e).

    On logits (all zero) it would be 2/3 ln 2; with a virtual label that is off, 0.
    """
    noise = Table(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    monkeypatch.setattr(vhl, "virtual_data", lambda *how: noise)
    body, head = nn.Identity(), nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    data = ClientData(Table(torch.eye(2), torch.tensor([0, 1])), None, None, 2)
    term = VHL(alpha=alpha, lam=lam, tau=1.0, batch=1)
    method = replace(FedAvg() + term, opt=Opt(lr=0.0, batch=2))
    program = Program(method, Net((2,), body=body, head=head), 1)
    loss = run(program, Tables([data]), 1).answers[0].up.metrics["loss"]
    expected = (1 + alpha) * log(2) + lam * 2 / 3 * log(1 + 1 / e)
    assert loss == pytest.approx(expected, rel=1e-6)


def test_every_client_learns_the_same_noise(monkeypatch):
    arguments = []

    def watched(*how):
        arguments.append(how)
        return virtual_data(*how)

    monkeypatch.setattr(vhl, "virtual_data", watched)
    played(FedAvg() + FEW, rounds=2)
    assert set(arguments) == {((4,), 3, 5, 5)}  # shape, classes, per class, the run's seed


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 9, 12), (20,), (6, 30)])
def test_virtual_data_is_a_function_of_the_seed(shape):
    every = torch.arange(24)
    data = virtual_data(shape, 4, 6, 1)
    x, other = data.x(every), virtual_data(shape, 4, 6, 2).x(every)
    torch.rand(3)
    again = virtual_data(shape, 4, 6, 1).x(every)
    assert x.shape == (24, *shape)
    assert torch.bincount(data.y).tolist() == [6] * 4
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("shape", [(3, 12, 12), (20,)])
def test_a_set_too_large_to_hold_is_made_row_by_row(shape, monkeypatch):
    """The same inputs but for rounding, and the same bytes when asked again."""
    held = VirtualData(shape, 4, 60, 1)
    monkeypatch.setattr(module, "HELD_NUMBERS", 0)
    rows = torch.tensor([0, 239, 7, 0])
    by_row, again = (VirtualData(shape, 4, 60, 1).x(rows) for _ in range(2))
    assert torch.allclose(by_row, held.x(rows), atol=1e-5)
    assert torch.equal(by_row, again)


def test_large_images_are_not_held():
    """Office-Home: 13000 images of 224 x 224 would be 7.8 GB in every process."""
    data = VirtualData((3, 224, 224), 65, 200, 0)
    assert data.x(torch.tensor([0, 12999])).shape == (2, 3, 224, 224)
    tensors = [v for v in vars(data).values() if isinstance(v, torch.Tensor)]
    assert sum(v.nbytes for v in tensors) < 2**24


def test_virtual_classes_can_be_told_apart():
    """Means of one half of the data name nearly all of the other half."""
    data = virtual_data((3, 16, 16), 10, 20, 0)
    x, y = data.x(torch.arange(200)).flatten(1), data.y
    centres = torch.stack([x[:100][y[:100] == c].mean(0) for c in range(10)])
    assert (torch.cdist(x[100:], centres).argmin(1) == y[100:]).float().mean() > 0.95


def test_nothing_more_travels_or_is_kept():
    end = played(FedAvg() + FEW)
    assert end.server.keys() == {"model"}
    for answer in end.answers:
        assert answer.down.state.keys() == answer.up.state.keys() == {"model"}
        assert answer.kept.keys() <= {"model"}


def test_batch_norm_statistics_are_of_real_inputs():
    """Where no weight moves they are FedAvg's, noise or not."""
    still = replace(OPT, lr=0.0)
    assert same(model(FedAvg() + FEW, opt=still), model(FedAvg(), opt=still))


def test_null_weights_are_fedavg():
    assert same(model(FedAvg() + VHL(alpha=0.0, lam=0.0)), model(FedAvg()))
    assert not same(model(FedAvg() + FEW), model(FedAvg()))


def test_a_second_model_does_not_move_the_draws():
    assert same(model("ditto + vhl(per_class=5)"), model("fedavg + vhl(per_class=5)"))


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("fedavg", "vhl(per_class=5)")
    for method in ("fedcr", "spherefed"):
        with pytest.raises(BadInput, match="cannot be combined"):
            model(f"{method} + vhl")
    for wrong in ("tau=0", "per_class=0", "batch=0", "alpha=-1", "lam=-1"):
        with pytest.raises(BadInput, match="vhl"):
            parse_method(f"fedavg + vhl({wrong})")
