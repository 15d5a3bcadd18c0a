"""FedCM on quadratics f_i(w) = (w - a_i)^2 / 2.

With alpha = 1/2 and lr = 1/4 a step is y <- y - 1/8 (y - a_i + Delta), which contracts by 7/8 to
p = a_i - Delta; K = 2 steps: y = p + 49/64 (x - p), and K lr = 1/2.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic import Play, full, point, product, rows, server_value, value
from sums import model, played, runs_with_fedbr_and_dbe

from fedloom.core.method import Method
from fedloom.core.phase import Opt
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method, register
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedcm import ClientMomentum, FedCM
from fedloom.methods.fedper import FedPer
from helpers import same

DELTA = "client_momentum"
A = (rows(64.0, n=1), rows(-128.0, n=3))


def fedcm(alpha=0.5, server_lr=1.0, **opt):
    return replace(FedCM(alpha=alpha, server_lr=server_lr), opt=full(0.25, 2, **opt))


def delta(play):
    return server_value(play, part=DELTA)


def test_two_rounds_by_hand():
    """a = (64, -128), x = 0, Delta = 0. Round 1: y = 15/64 a = (15, -30), mean -7.5 (uniform,
    though n = (1, 3)); Delta = (0 + 7.5) / (1/2) = 15, not 7.5/lr = 30, not 7.5/K, not -15.

    Round 2: p = a - 15 = (49, -143), y_0 = 49 + 49/64 (-7.5 - 49) = 5.7421875,
    y_1 = -143 + 49/64 (-7.5 + 143) = -39.2578125; x = -16.7578125;
    Delta = (-7.5 + 16.7578125) / (1/2) = 18.515625.
    """
    play = Play(fedcm(), point(0.0), *A).round()
    assert [value(play.up[i].state["model"]) for i in (0, 1)] == [15.0, -30.0]
    assert (server_value(play), delta(play)) == (-7.5, 15.0)
    play.round()
    assert [value(play.up[i].state["model"]) for i in (0, 1)] == [5.7421875, -39.2578125]
    assert (server_value(play), delta(play)) == (-16.7578125, 18.515625)


def test_absent_clients_get_the_last_delta():
    """Delta is of the last cohort alone: round 2 with client 0 moves x from -7.5 to 5.7421875."""
    play = Play(fedcm(), point(0.0), *A).round().round(0)
    assert delta(play) == (-7.5 - 5.7421875) / 0.5
    play.round(1)
    assert value(play.down[1].state[DELTA]) == (-7.5 - 5.7421875) / 0.5


def test_delta_is_before_the_servers_step_size():
    """server_lr = 1/2 moves x half-way; Delta stays the mean direction of the clients' steps."""
    play = Play(fedcm(server_lr=0.5), point(0.0), *A).round()
    assert (server_value(play), delta(play)) == (-3.75, 15.0)


def test_the_methods_weights_are_used_for_both_means():
    """By samples: (15 - 3 * 30) / 4 = -18.75, Delta = 37.5."""
    method = replace(FedAvg() + ClientMomentum(0.5), opt=full(0.25, 2))
    play = Play(method, point(0.0), *A).round()
    assert (server_value(play), delta(play)) == (-18.75, 37.5)


def test_unlike_numbers_of_steps():
    """Batches of one row and one epoch: K = (1, 3). y_0 = 1/8 * 64 = 8,
    y_1 = -128 (1 - (7/8)^3) = -42.25; mean -17.125; mean K lr = (1/4 + 3/4) / 2 = 1/2."""
    method = replace(FedCM(alpha=0.5), opt=Opt(lr=0.25, batch=1))
    play = Play(method, point(0.0), *A).round()
    assert (server_value(play), delta(play)) == (-17.125, 34.25)


def test_the_way_down_doubles_and_one_number_per_tensor_goes_up():
    play = Play(fedcm(), product(1.0, 2.0), *A).round()
    down, up = play.down[0].state, play.up[0].state
    assert nbytes({"d": down[DELTA]}) == nbytes({"m": down["model"]})
    assert {k: (v.shape, v.item()) for k, v in up[DELTA].items()} == {
        "body.weight": (torch.Size([]), 0.5),
        "head.weight": (torch.Size([]), 0.5),
    }


def test_personal_tensors_are_not_corrected():
    play = Play(replace(FedPer() + ClientMomentum(0.5), opt=full()), product(1.0, 2.0), *A).round()
    assert set(play.server[DELTA]) == {"body.weight"}


def test_statistics_of_batch_norm_have_no_momentum():
    sent = parse_method("fedavg + client_momentum")
    assert any("running" in k for k in model(sent))
    assert not any("running" in k for k in played(sent, rounds=1).server[DELTA])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_alpha_1_is_fedavg(weighting):
    plain = FedAvg(weighting=weighting)
    assert same(model(plain + ClientMomentum(alpha=1.0), rounds=3), model(plain, rounds=3))
    assert not same(model(plain + ClientMomentum(), rounds=3), model(plain, rounds=3))


def test_composes_and_refuses():
    runs_with_fedbr_and_dbe("fedcm")
    runs_with_fedbr_and_dbe("fedper", "client_momentum")
    for alpha in ("0", "1.5"):
        with pytest.raises(BadInput, match="alpha"):
            parse_method(f"fedavg + client_momentum(alpha={alpha})")
    with pytest.raises(BadInput, match="cannot be combined"):
        model("fedpac + client_momentum")


def test_every_refused_name_is_that_of_a_part():
    """Not of a recipe: `ifca` is `hypcluster` by name, so naming it would refuse nothing."""
    parts: list = []
    for name in register:
        built = register[name]()
        alone = built.parts if isinstance(built, Method) else (built,)
        parts += built if isinstance(built, tuple) else alone
    known = {part.name for part in parts}
    assert "ifca" not in known
    for part in parts:
        assert set(part.refuses) <= known, part.name
