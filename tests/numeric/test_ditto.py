"""Ditto on quadratics: v <- v - lr ((v - a) + lam (v - w)) contracts by 1 - lr (1 + lam) to
p = (a + lam w)/(1 + lam), w being the model as received.

Here lam = 1, lr = 1/4, K = 2: v_K = p + (v - p)/4 with p = (a + w)/2, and the global side is
FedAvg: w_i = a + 9/16 (w - a).
"""

from __future__ import annotations

import pytest
from quadratic import Play, full, kept, point, rows, server_value, value

from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.methods.ditto import Ditto
from fedloom.methods.fedavg import FedAvg
from helpers import mlp, same, tables
from helpers import run as play_all

A = (rows(0.0), rows(32.0))
DITTO = Ditto(lam=1.0, opt=full(0.25, 2))


def test_personal_models_over_three_rounds():
    """w = 8, a = (0, 32).

    Round 1, both: p = (4, 20), v = (4 + 4/4, 20 - 12/4) = (5, 17); w_i = (4.5, 18.5), w = 11.5.
    (Anchored at the locally trained 4.5, v_0 would be 2.25 + 5.75/4 = 3.6875.)
    Round 2, client 1: p = 21.75, v_1 = 21.75 + (17 - 21.75)/4 = 20.5625;
    w = 32 - 9/16 * 20.5 = 20.46875. v_0 stays 5.
    Round 3, client 0: p = 10.234375, v_0 = 10.234375 + (5 - 10.234375)/4 = 8.92578125: from the v_0
    of round 1, not from the w received (which would give 12.79296875).
    """
    play = Play(DITTO, point(8.0), *A).round(0, 1)
    assert [kept(play, i, "ditto") for i in (0, 1)] == [5.0, 17.0]
    assert server_value(play) == 11.5
    play.round(1)
    assert [kept(play, i, "ditto") for i in (0, 1)] == [5.0, 20.5625]
    assert server_value(play) == 20.46875
    play.round(0)
    assert [kept(play, i, "ditto") for i in (0, 1)] == [8.92578125, 20.5625]


def test_a_late_client_begins_at_the_first_model_it_receives():
    """Client 1 alone first: w = 18.5. Client 0 then: p = 9.25, v_0 = 9.25 + (18.5 - 9.25)/4
    = 11.5625; from the net's initial 8 it would be 8.9375."""
    play = Play(DITTO, point(8.0), *A).round(1).round(0)
    assert kept(play, 0, "ditto") == 11.5625


@pytest.mark.parametrize(("lam", "v"), [(0.0, 4.5), (3.0, 6.0)])
def test_lam(lam, v):
    """a = 0, w = v = 8. lam = 0: plain training, 8 * 9/16 = 4.5. lam = 3: factor 0, v = p = 6."""
    play = Play(Ditto(lam=lam, opt=full(0.25, 2)), point(8.0), rows(0.0)).round()
    assert kept(play, 0, "ditto") == v


def test_personal_epochs():
    """a = 0, w = v = 8. One personal epoch: v = 4 + 4/2 = 6; the global model trains its two:
    w_0 = 9/16 * 8 = 4.5."""
    play = Play(Ditto(lam=1.0, personal_epochs=1, opt=full(0.25, 2)), point(8.0), rows(0.0)).round()
    assert kept(play, 0, "ditto") == 6.0
    assert server_value(play) == 4.5


def test_v_is_what_predicts_and_w_is_what_travels():
    """After round 1 above: v_0 = 5 and w_0 = 4.5, beside the received w = 11.5."""
    play = Play(DITTO, point(8.0), *A).round()
    assert {name: value(tree) for name, tree in play.up[0].state.items()} == {"model": 4.5}
    site = play.site(0)
    assert value(site.w) == 11.5
    assert value(site.method.personalize(site)["model"]) == 5.0


def test_the_global_model_is_fedavgs_bit_for_bit():
    """Though v is trained first, with batches of its own."""
    opt, data = Opt(lr=0.1, batch=3, epochs=2), tables(7, 10)
    ends = [
        play_all(Program(method, mlp(), 2), data, rounds=2).server["model"]
        for method in (FedAvg(opt=opt), Ditto(opt=opt, personal_epochs=3))
    ]
    assert same(*ends)
