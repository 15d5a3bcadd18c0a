"""FedMix: Proposition 1 by hand, against mixup itself, and against a bare step; and the means.

Of a linear network with logits W x the slope of the loss is W'(p - y).
"""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
import torch.nn.functional as F
from quadratic import linear
from sums import Watch, model, played, runs_with_fedbr_and_dbe
from torch import nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.message import Down
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.site import Visit
from fedloom.errors import BadInput
from fedloom.method_tools.mean_data import mean_data
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedmix import FedMix
from helpers import Table, mlp, same, table


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


W = ([1.0, 0.0], [0.5, -1.0], [0.0, 2.0])
X, Y = doubles([0.5, -1.0], [2.0, 1.0]), torch.tensor([0, 2])
X_MEAN, Y_MEAN = doubles([0.75, 0.25]), doubles([0.2, 0.5, 0.3])


def visit(term, net, x, y, x_mean, y_mean, opt):
    """One client that holds one mean and trains on all its rows."""
    program = Program(replace(FedAvg() + term + Watch(), opt=opt), net, 1)
    state = {"model": net.tree(), "fedmix": {"x": x_mean, "y": y_mean}}
    plan = next(p for p in program.schedule(1) if p.kind == "train")
    data = ClientData(Table(x, y), None, None, y_mean.shape[1])
    return client(Visit(program, 0, data, Down(plan, state)))[0]


def loss_of(lam, x=X, y=Y, x_mean=X_MEAN, y_mean=Y_MEAN, rows=W):
    net = Net((2,), body=nn.Identity(), head=linear(*rows))
    up = visit(FedMix(lam=lam), net, x, y, x_mean, y_mean, Opt(lr=0.0, batch=8))
    return up.metrics["loss"]


def test_loss_by_hand():
    """W = I, x = 0: p = (1/2, 1/2), both cross-entropies are ln 2; y = 0: the slope is
    (-1/2, 1/2), xbar = (1, 3): lam (-1/2 + 3/2) = lam."""
    loss = loss_of(
        0.25,
        doubles([0.0, 0.0]),
        torch.tensor([0]),
        doubles([1.0, 3.0]),
        doubles([0.5, 0.5]),
        ([1.0, 0.0], [0.0, 1.0]),
    )
    assert loss == pytest.approx(log(2) + 0.25, rel=1e-6)


def test_proposition_1():
    """All three terms at x^ = (1 - lam) x, the slope with the sample's own label."""
    lam, w = 0.25, doubles(*W)
    p = (0.75 * X @ w.T).softmax(1)
    at_y, at_mean = -p.log()[[0, 1], Y], -(Y_MEAN * p.log()).sum(1)
    slope = (p - F.one_hot(Y, 3)) @ w
    expected = 0.75 * at_y + lam * at_mean + lam * (slope * X_MEAN).sum(1)
    assert loss_of(lam) == pytest.approx(float(expected.mean()), rel=1e-6)


def test_it_is_mixup_up_to_second_order():
    """The error against CE((1 - lam) x + lam xbar, (1 - lam) y + lam ybar) falls four times when
    lam is halved; without the third term, or with a wrong one, only twice."""

    def error(lam):
        exact = (1 - lam) * X + lam * X_MEAN
        target = (1 - lam) * F.one_hot(Y, 3) + lam * Y_MEAN
        return abs(loss_of(lam) - float(F.cross_entropy(exact @ doubles(*W).T, target)))

    assert error(0.08) / error(0.04) == pytest.approx(4, abs=0.5)


def bare_step(x, y, x_mean, y_mean, w, lam, lr):
    """One step of Proposition 1 in plain PyTorch, the slope differentiated through."""
    w = {k: v.clone().requires_grad_() for k, v in w.items()}
    x = ((1 - lam) * x).requires_grad_()
    z = torch.tanh(x @ w["body.0.weight"].T + w["body.0.bias"])
    out = z @ w["head.weight"].T + w["head.bias"]
    own = F.cross_entropy(out, y)
    (slope,) = torch.autograd.grad(own, x, create_graph=True)
    mean = F.cross_entropy(out, y_mean.expand(len(y), -1))
    loss = (1 - lam) * own + lam * mean + lam * (slope * x_mean).sum()
    g = torch.autograd.grad(loss, list(w.values()))
    return {k: (v - lr * d).detach() for (k, v), d in zip(w.items(), g, strict=True)}


def test_a_step_differentiates_the_slope():
    torch.manual_seed(0)
    net = Net((4,), body=nn.Sequential(nn.Linear(4, 5), nn.Tanh()), head=nn.Linear(5, 3))
    rows = table(6)
    x_mean, y_mean = torch.tensor([[1.0, -2.0, 0.5, 3.0]]), torch.tensor([[0.2, 0.2, 0.6]])
    data = (rows.rows, rows.y, x_mean, y_mean)
    up = visit(FedMix(lam=0.2), net, *data, Opt(lr=0.5, batch=6))
    expected = bare_step(*data, net.tree(), 0.2, 0.5)
    for k, v in expected.items():
        assert torch.allclose(up.state["model"][k], v, atol=1e-6), k


def test_one_mean_per_batch_or_per_sample():
    """Read off the soft labels: (1 - lam) y + lam ybar, ybar one of two."""
    y_mean = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    rows, picked = table(12), {}
    for per in ("batch", "sample"):
        Watch.seen.clear()
        term = FedMix(lam=0.5, per=per)
        data = (rows.rows, rows.y, torch.zeros(2, 4), y_mean)
        visit(term, mlp(), *data, Opt(lr=0.0, batch=12, epochs=8))
        shares = [b.target - 0.5 * F.one_hot(b.y, 3) for b in Watch.seen]
        picked[per] = [len(share.unique(dim=0)) for share in shares]
        assert all(torch.equal(b.y, rows.y[b.idx]) for b in Watch.seen)
    assert picked["batch"] == [1] * 8
    assert max(picked["sample"]) == 2


# ------------------------------------------------------------------ the means


def test_means_are_of_disjoint_groups_that_hold_all_rows():
    """23 rows in two groups: 12 and 11, whose means weigh up to the mean of all."""
    x, y = torch.arange(23.0)[:, None], torch.arange(23) % 3
    means = mean_data(Table(x, y), means=2, of=10, classes=3, gen=generator("means"))
    assert means["size"].tolist() == [12, 11]
    total = (means["size"][:, None] * means["x"]).sum(0)
    assert total.tolist() == pytest.approx([253.0])
    assert (means["size"][:, None] * means["y"]).sum(0).tolist() == pytest.approx([8, 8, 7])
    assert means["x"][0] != pytest.approx(5.5)  # not the rows in their order


@pytest.mark.parametrize(("n", "sizes"), [(9, [0, 0]), (10, [10, 0]), (19, [19, 0]), (1, [0, 0])])
def test_no_mean_of_fewer_samples_than_asked(n, sizes):
    means = mean_data(table(n), means=2, of=10, classes=3, gen=generator("few"))
    assert means["size"].tolist() == sizes
    assert means["x"].shape == (2, 4)


def test_the_server_collects_them_once_and_every_client_keeps_them():
    """Clients of 11, 12, 13 and 20 rows make 1, 1, 1 and 2 means of at least 10; they come down
    once, in a client's first round."""
    end = played("fedavg + fedmix(means=3)", rounds=2)
    assert end.server["fedmix"]["x"].shape == (5, 4)
    assert torch.allclose(end.server["fedmix"]["y"].sum(1), torch.ones(5))
    downs = {a.plan.t: a.down.state for a in end.answers if a.cid == 0 and a.plan.kind == "train"}
    assert set(downs[1]["fedmix"]) == {"x", "y"}
    assert "fedmix" not in downs[2]
    assert same(end.clients[0]["fedmix"], downs[1]["fedmix"])
    assert all("fedmix" not in a.up.state for a in end.answers if a.plan.kind == "train")


# ------------------------------------------------------------------ alone and in sums


def test_lam_0_and_no_means_are_fedavg():
    plain = model(FedAvg())
    assert same(model(FedAvg() + FedMix(lam=0.0)), plain)
    assert same(model(FedAvg() + FedMix(of=100)), plain)
    assert not same(model(FedAvg() + FedMix()), plain)


def test_a_second_model_does_not_move_the_draws():
    assert same(model("ditto + fedmix"), model("fedavg + fedmix"))


@pytest.mark.parametrize("other", ["fedcr", "spherefed", "fedrod", "fedetf", "fedavg + mixup"])
def test_refuses(other):
    """Fed-RoD and FedETF: a class the client lacks has log prior -1000, which lam times the mean's
    label would bring into the loss."""
    with pytest.raises(BadInput, match="cannot be combined"):
        model(f"{other} + fedmix")


def test_composes_and_checks_its_numbers():
    runs_with_fedbr_and_dbe("fedavg", "fedmix")
    for wrong in ("lam=1.0", "of=1", "means=0"):
        with pytest.raises(BadInput, match="fedmix"):
            parse_method(f"fedavg + fedmix({wrong})")
