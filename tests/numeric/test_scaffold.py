"""SCAFFOLD, option II, on quadratics f_i(w) = (w - a_i)^2 / 2.

A corrected step is y <- y - lr (y - a_i - c_i + c), which contracts to p = a_i + c_i - c:
y_K = p + (1 - lr)^K (x - p). Here lr = 1/4 and K = 2: (3/4)^2 = 9/16 and K lr = 1/2, so dividing by
lr alone, by K alone or by nothing would each give another number.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from quadratic import Play, full, kept, point, product, rows, server_value, value

from fedloom.core.tree import nbytes
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.methods.fedcm import ClientMomentum
from fedloom.methods.fedrep import FedRep
from fedloom.methods.scaffold import SCAFFOLD, ControlVariates

C = "control_variates"
A = (rows(16.0, n=1), rows(-32.0, n=3))


def scaffold(lr=0.25, epochs=2, server_lr=1.0, **opt):
    return replace(SCAFFOLD(server_lr=server_lr), opt=full(lr, epochs, **opt))


def test_three_rounds_with_partial_participation():
    """a = (16, -32), x = 0, c = c_0 = c_1 = 0.

    Round 1, both: y_i = 7/16 a_i = (7, -14). c_i = (0 - y_i)/(1/2) = (-14, 28).
    x = (7 - 14)/2 = -3.5 (uniform, though n = (1, 3)); c = 2/2 mean(-14, 28) = 7.

    Round 2, client 0: the step is y - 16 + 14 + 7 = y + 5, p = -5,
    y = -5 + 9/16 (-3.5 + 5) = -4.15625; c_0 = -14 - 7 + (-3.5 + 4.15625)/(1/2) = -19.6875;
    x = -4.15625; c = 7 + 1/2 (-19.6875 + 14) = 4.15625.

    Round 3, client 1 with the c_1 of round 1: y + 32 - 28 + 4.15625, p = -8.15625,
    y = -8.15625 + 9/16 * 4 = -5.90625; c_1 = 28 - 4.15625 + (-4.15625 + 5.90625)/(1/2) = 27.34375;
    x = -5.90625; c = 4.15625 + 1/2 (27.34375 - 28) = 3.828125.
    """
    play = Play(scaffold(), point(0.0), *A).round(0, 1)
    assert [value(play.up[i].state["model"]) for i in (0, 1)] == [7.0, -14.0]
    assert [kept(play, i, C) for i in (0, 1)] == [-14.0, 28.0]
    assert (server_value(play), server_value(play, part=C)) == (-3.5, 7.0)

    play.round(0)
    assert value(play.up[0].state[C]) == -5.6875
    assert [kept(play, i, C) for i in (0, 1)] == [-19.6875, 28.0]
    assert (server_value(play), server_value(play, part=C)) == (-4.15625, 4.15625)

    play.round(1)
    assert [kept(play, i, C) for i in (0, 1)] == [-19.6875, 27.34375]
    assert (server_value(play), server_value(play, part=C)) == (-5.90625, 3.828125)


def test_server_c_is_the_mean_of_all_client_c():
    """c starts at the mean of the c_i and every change of a c_i enters with 1/N, so c stays the
    mean over all N clients, whoever took part."""
    play = Play(scaffold(), point(1.0), *(rows(a) for a in (3.0, -5.0, 11.0, 0.5)))
    for cohort in ((0, 1), (2,), (1, 2, 3), (0,), (3, 1)):
        play.round(*cohort)
        every = [kept(play, i, C) if i in play.own else 0.0 for i in range(4)]
        assert server_value(play, part=C) == pytest.approx(sum(every) / 4, abs=1e-12)


def test_global_step_size_moves_the_model_and_not_c():
    """As round 1 above with server_lr 1/2: x = 0 + 1/2 (-3.5); c is the same 7."""
    play = Play(scaffold(server_lr=0.5), point(0.0), *A).round()
    assert (server_value(play), server_value(play, part=C)) == (-1.75, 7.0)


def test_drift_is_gone_where_fedavg_stops_short():
    """Unequal curvature, x = 1 with target 0 and x = 2 with target 2: f_0 = w^2/2 and
    f_1 = (2w - 2)^2/2, whose mean is least where w + 4 (w - 1) = 0, at w = 0.8.

    FedAvg, lr = 1/8, K = 4, contracts by q_0 = (7/8)^4 and q_1 = (1/2)^4 to 0 and 1: its fixed
    point is (1 - q_1)/((1 - q_0) + (1 - q_1)) = 0.9375/1.35132 = 0.69376. SCAFFOLD reaches 0.8.
    """
    steep = rows(2.0)
    steep.train.rows.mul_(2.0)
    q_0, q_1 = (7 / 8) ** 4, (1 / 2) ** 4
    ends = {}
    for name, method in {
        "fedavg": FedAvg(opt=full(0.125, 4)),
        "scaffold": scaffold(0.125, 4),
    }.items():
        play = Play(method, point(5.0), rows(0.0), steep)
        for _ in range(120):
            play.round()
        ends[name] = server_value(play)
    assert ends["fedavg"] == pytest.approx((1 - q_1) / (2 - q_0 - q_1), abs=1e-9)
    assert ends["scaffold"] == pytest.approx(0.8, abs=1e-9)


def test_learning_rate_decay_is_in_k_lr():
    """One client, K = 1: c = c_0, the correction cancels, and c_0 must be the gradient itself.
    a = 16: round 1 (lr 1/4): g = -16, x = 4. Round 2 (lr 1/8): g = -12, x = 5.5 and
    c_0 = (4 - 5.5)/(1/8) = -12; with the undecayed 1/4 it would be -6."""
    play = Play(scaffold(epochs=1, decay=0.5), point(0.0), rows(16.0)).round()
    assert (server_value(play), kept(play, 0, C)) == (4.0, -16.0)
    play.round()
    assert (server_value(play), kept(play, 0, C)) == (5.5, -12.0)


def test_k_counts_each_tensors_own_steps_under_phases():
    """FedRep + control variates, b = h = 1, a = 3, lr = 1/4, two head epochs, one body epoch.

    Head: h = 1 + 2/4 = 1.5, then 1.5 + 1.5/4 = 1.875. Body: db = h (h - 3) = -2.109375, and since
    the body took one step of three, c_b = (1 - b)/(1 * 1/4) = -2.109375 as well. The head is
    personal and has no control variate.
    """
    method = FedRep(opt=full(), head_epochs=2, body_epochs=1, adapt_epochs=0) + ControlVariates()
    play = Play(method, product(1.0, 1.0), rows(3.0)).round()
    assert kept(play, 0, "model") == 1.875
    assert play.own[0][C].keys() == {"body.weight"}
    assert kept(play, 0, C, "body.weight") == -2.109375
    assert server_value(play, "body.weight") == 1 + 2.109375 / 4


def test_traffic_is_twice_fedavgs():
    """One float64 weight and its control variate, each way."""
    play = Play(scaffold(), point(0.0), *A).round()
    assert nbytes(play.down[0].state) == nbytes(play.up[0].state) == 16


@pytest.mark.parametrize("term", [ClientMomentum(), ControlVariates()])
def test_fine_tuning_takes_plain_steps(term):
    """Many epochs of it lead every client to its own a_i; with the correction of the rounds they
    would lead to a_i + c_i - c (control variates) or to a_i - 9 Delta (momentum)."""
    method = replace(FedAvgFT(adapt_epochs=200) + term, opt=full(0.25, 2))
    play = Play(method, point(0.0), rows(8.0), rows(-4.0)).round().round().round().adapt()
    assert [kept(play, i, "final/model") for i in (0, 1)] == pytest.approx([8.0, -4.0], abs=1e-9)
