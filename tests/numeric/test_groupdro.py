"""GroupDRO on quadratics f_i(w) = (w - a_i)^2 / 2.

From w = 0 the losses of a = (2, -4) are (2, 8). With eta = ln 2 / 6 the second weight grows by
e^(6 eta) = 2 more than the first: q = (1/3, 2/3). One step of lr = 1/4: w_i = a_i / 4 = (1/2, -1).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from quadratic import Play, full, point, rows, server_value, value
from sums import model, played, runs_with_fedbr_and_dbe

from fedloom.core.round import Round, send
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.groupdro import GroupDRO
from helpers import same

ETA = log(2) / 6
A = (rows(2.0, n=1), rows(-4.0, n=3))


def group_dro(eta=ETA, epochs=1, **more):
    return replace(GroupDRO(eta=eta, **more), opt=full(0.25, epochs))


def weights(play):
    return play.server["groupdro"]["log_q"].exp().tolist()


def test_one_round_by_hand():
    """The mean is by the new weights: 1/3 * 1/2 - 2/3 * 1 = -1/2; by the old ones it would be
    -1/4, and by samples -5/8."""
    play = Play(group_dro(), point(0.0), *A).round()
    assert [value(play.up[i].state["groupdro"], "loss") for i in (0, 1)] == [2.0, 8.0]
    assert weights(play) == pytest.approx([1 / 3, 2 / 3], abs=1e-12)
    assert server_value(play) == pytest.approx(-0.5, abs=1e-12)


def test_weights_add_up_over_rounds():
    """Round 2 from w = -1/2: losses 2.5^2/2 = 3.125 and 3.5^2/2 = 6.125, so
    q_1 / q_0 = 2 e^(3 eta) = 2 sqrt 2; w_i = w - (w - a_i)/4 = (1/8, -11/8)."""
    play = Play(group_dro(), point(0.0), *A).round().round()
    ratio = 2 * 2**0.5
    q = [1 / (1 + ratio), ratio / (1 + ratio)]
    assert weights(play) == pytest.approx(q, abs=1e-12)
    assert server_value(play) == pytest.approx(q[0] / 8 - q[1] * 11 / 8, abs=1e-12)


def test_the_loss_is_of_the_model_as_received():
    """Whatever is trained afterwards: four epochs report the same 2 and 8; in training the mean
    over epochs is smaller."""
    received, training = (
        Play(group_dro(epochs=4, measure=m), point(0.0), *A).round()
        for m in ("received", "training")
    )
    assert value(received.up[1].state["groupdro"], "loss") == 8.0
    # The loss falls by (9/16) per step: 8 (1 + 9/16 + (9/16)^2 + (9/16)^3) / 4.
    mean = 2 * sum((9 / 16) ** k for k in range(4))
    assert value(training.up[1].state["groupdro"], "loss") == pytest.approx(mean, rel=1e-6)


def test_an_absent_client_keeps_its_weight_but_for_the_sum():
    """Round 1 with client 0 alone: q = (e^(2 eta), 1) / (1 + e^(2 eta)); the mean is its model."""
    play = Play(group_dro(), point(0.0), *A).round(0)
    up = exp(2 * ETA)
    assert weights(play) == pytest.approx([up / (1 + up), 1 / (1 + up)], abs=1e-12)
    assert server_value(play) == 0.5


def test_samples_weigh_too_where_asked():
    """q n = (1 * 1, 2 * 3): (1/2 - 6) / 7."""
    play = Play(group_dro(weighting="samples"), point(0.0), *A).round()
    assert server_value(play) == pytest.approx(-5.5 / 7, abs=1e-12)


def test_the_weights_are_never_sent_nor_kept():
    play = Play(group_dro(), point(0.0), *A).round().round()
    assert all(down.state.keys() == {"model"} for down in play.down.values())
    assert all("groupdro" not in own for own in play.own.values())
    r = Round(play.program, play.program.schedule(1)[0], play.server)
    assert send(r, 17).state.keys() == {"model"}


def test_eta_0_is_fedavg_with_uniform_weights():
    """With four clients: their weights 1/4 are powers of two, so no rounding differs."""
    even = FedAvg(weighting="uniform")
    assert same(model(GroupDRO(eta=0.0)), model(even))
    assert not same(model(GroupDRO(eta=1.0)), model(even))


def test_mixup_is_a_term_of_its_own():
    """FedBR's code always mixes: here only a sum with mixup does."""
    assert GroupDRO().terms == ()
    assert not same(model("groupdro + mixup"), model("groupdro"))


def test_weights_sum_to_one_and_stay_finite():
    log_q = played(GroupDRO(eta=5.0), rounds=4).server["groupdro"]["log_q"]
    assert torch.isfinite(log_q).all()
    assert float(log_q.exp().sum()) == pytest.approx(1.0)


def test_large_losses_do_not_overflow_and_weights_come_back():
    """eta = 100: the exponents are 200 and 800, of which e has none; the second client is all.
    Then it is alone for ten rounds more, its e^(100 l) on and on; log q_0 falls below what a
    number can hold (e^-745), and client 0 still trains when it is asked alone."""
    play = Play(group_dro(eta=100.0), point(0.0), *A).round()
    assert weights(play) == pytest.approx([0.0, 1.0], abs=1e-12)
    assert server_value(play) == pytest.approx(-1.0, abs=1e-12)
    for _ in range(10):
        play.round(1)
    log_q = play.server["groupdro"]["log_q"]
    assert log_q[0] < -745
    w = server_value(play)
    assert server_value(play.round(0)) == pytest.approx(w + (2 - w) / 4, abs=1e-12)


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("groupdro", "mixup")
    with pytest.raises(BadInput, match="eta"):
        parse_method("groupdro(eta=-1)")
