"""FedProx on quadratics: y <- y - lr ((y - a) + mu (y - x)) contracts by 1 - lr (1 + mu) to
p = (a + mu x)/(1 + mu), where x is the model received."""

from __future__ import annotations

from dataclasses import replace

import pytest
from quadratic import Play, full, kept, point, product, rows, server_value

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedper import FedPer
from fedloom.methods.fedprox import FedProx, Proximal
from helpers import mlp, same, tables
from helpers import run as play_all


def fedprox(mu, epochs):
    return replace(FedProx(mu=mu), opt=full(0.25, epochs))


def test_three_steps_and_the_next_anchor():
    """a = 0, x = 8, mu = 1, lr = 1/4: factor 1/2, p = 4, y_3 = 4 + 4/8 = 4.5 (8, 6, 5, 4.5).
    Round 2 is anchored at 4.5: p = 2.25, y_3 = 2.25 + 2.25/8 = 2.53125; at the old anchor 8 it
    would be 4.0625."""
    play = Play(fedprox(1.0, 3), point(8.0), rows(0.0)).round()
    assert server_value(play) == 4.5
    assert server_value(play.round()) == 2.53125


@pytest.mark.parametrize(("mu", "end"), [(0.0, 0.0), (1.0, 4.0), (3.0, 6.0)])
def test_fixed_point(mu, end):
    """p = (0 + 8 mu)/(1 + mu): 0, 4, 6."""
    play = Play(fedprox(mu, 300), point(8.0), rows(0.0)).round()
    assert server_value(play) == pytest.approx(end, abs=1e-12)


def test_personal_tensors_feel_no_pull():
    """FedPer + proximal(mu=1), b = h = 1, a = 3, lr = 1/4, two steps. Step 1: residual -2 and no
    pull yet, b = h = 1.5. Step 2: residual 2.25 - 3 = -0.75; db = 1.5 * -0.75 + 1 (1.5 - 1)
    = -0.625, b = 1.65625; the head is personal: dh = -1.125, h = 1.78125."""
    method = FedPer(opt=full(0.25, 2)) + Proximal(mu=1.0)
    play = Play(method, product(1.0, 1.0), rows(3.0)).round()
    assert server_value(play, "body.weight") == 1.65625
    assert kept(play, 0, "model") == 1.78125


def test_mu_zero_is_fedavg_bit_for_bit():
    opt, data = Opt(lr=0.1, batch=3, epochs=2), tables(7, 10)
    ends = [
        play_all(Program(method, mlp(), 2), data, rounds=2).server["model"]
        for method in (FedAvg(opt=opt), FedAvg(opt=opt) + Proximal(mu=0.0))
    ]
    assert same(*ends)
