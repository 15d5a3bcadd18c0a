"""APPLE on quadratics f_i(w) = (w - a_i)^2 / 2, w_i = sum_j p_ij c_j.

With g = w_i - a_i a step is c_i <- c_i - lr p_ii g and p_ij <- p_ij - p_lr (g c_j + penalty), both
from the values before it. Here lr = 1/4 and p_lr = 2^-10, so that all numbers are exact.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic import Play, full, point, rows, server_value, value

from fedloom.core.net import METHOD
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, send
from fedloom.core.site import Site, Visit
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.apple import APPLE
from fedloom.methods.fedavg import FedAvg
from helpers import finite, mlp, run, same, tables

P_LR = 2.0**-10


def apple(epochs=1, mu=0.0, **more):
    return APPLE(mu=mu, p_lr=P_LR, opt=full(0.25, epochs), **more)


def after_sizes(method, *data, w=16.0):
    """A run whose round of sizes is done."""
    play = Play(method, point(w), *data)
    return play._play(play.program.schedule(1)[0], ())


def cores(play):
    return play.server["apple"]["head.weight"].flatten().tolist()


def p_of(play, cid):
    return play.own[cid]["apple"]["p"].tolist()


def visited(play, cid, data=None):
    """The client as it would stand if the next training round began now."""
    r = Round(play.program, play.program.schedule(1)[-1], play.server)
    data = play.data[cid] if data is None else data
    return Site(Visit(play.program, cid, data, send(r, cid), play.own.get(cid)))


def personal(site):
    return value(site.method.personalize(site)["model"])


def test_one_round_by_hand():
    """c = (16, 16), p_0 = (1/2, 1/2), a = (0, 32). Client 0: w_0 = 16, g = 16,
    c_0 = 16 - 1/4 * 1/2 * 16 = 14 (12 without p_ii), p_0j = 1/2 - 256/1024 = 1/4.
    Client 1: g = -16, c_1 = 18, p_1j = 3/4. Then w_0 = 1/4 (14 + 18) = 8, w_1 = 24."""
    play = after_sizes(apple(), rows(0.0), rows(32.0)).round()
    assert cores(play) == [14.0, 18.0]
    assert (p_of(play, 0), p_of(play, 1)) == ([0.25, 0.25], [0.75, 0.75])
    assert [personal(visited(play, cid)) for cid in (0, 1)] == [8.0, 24.0]


def test_the_second_step_uses_the_clients_own_core_as_it_is_now():
    """Client 0 goes on from c_0 = 14, p = (1/4, 1/4), the other's core as downloaded, 16:
    w_0 = 3.5 + 4 = 7.5, c_0 = 14 - 7.5/16 = 13.53125, p = 1/4 - 7.5 (14, 16)/1024."""
    play = after_sizes(apple(epochs=2), rows(0.0), rows(32.0)).round()
    assert cores(play)[0] == 13.53125
    assert p_of(play, 0) == [0.25 - 105 / 1024, 0.25 - 120 / 1024]


def test_ps_momentum():
    """Momentum 1/2, as above: the first step's velocity is 256, the second's 128 + 7.5 (14, 16)."""
    play = after_sizes(apple(epochs=2, p_momentum=0.5), rows(0.0), rows(32.0)).round()
    assert p_of(play, 0) == [0.25 - (128 + 105) / 1024, 0.25 - (128 + 120) / 1024]


def test_the_penalty_fades():
    """mu = 64, L = 2. Round 1 (r = 0): p is p_0, no pull. Round 2 (r = 1): lam = 1/2,
    p - p_0 = -1/4, pull = 1/2 * 64 * -1/4 = -8: with w_0 = 8, slopes 8 (14, 18) = (112, 144),
    p = 1/4 - (104, 136)/1024; with L = 1 nothing pulls any more: p = 1/4 - (112, 144)/1024."""
    for rounds, slopes in ((2, (104, 136)), (1, (112, 144))):
        play = (
            after_sizes(apple(mu=64.0, fade_rounds=rounds), rows(0.0), rows(32.0)).round().round()
        )
        assert p_of(play, 0) == [0.25 - slope / 1024 for slope in slopes]


def test_the_rate_of_p_shares_the_runs_decay():
    """decay 1/2, mu = 0. Round 1 as above: cores (14, 18), p = 1/4, w_0 = 8. Round 2: p_lr = 2^-11
    and lr = 1/8: p = 1/4 - 8 (14, 18)/2048, c_0 = 14 - 1/8 * 1/4 * 8 = 13.75."""
    method = replace(apple(), opt=full(0.25, decay=0.5))
    play = after_sizes(method, rows(0.0), rows(32.0)).round().round()
    assert p_of(play, 0) == [0.25 - 112 / 2048, 0.25 - 144 / 2048]
    assert cores(play)[0] == 13.75


def test_the_shape_of_the_fading():
    """Cosine, L = 4: 1, (1 + sqrt(1/2))/2, 1/2, (1 - sqrt(1/2))/2, 0, 0. Exponential: from 1 to
    0.001, then 0."""
    root = 0.5**0.5
    lam = [APPLE(fade_rounds=4)._lam(r) for r in range(6)]
    assert lam == pytest.approx([1, (1 + root) / 2, 0.5, (1 - root) / 2, 0, 0], abs=1e-12)
    lam = [APPLE(fade_rounds=3, fading="exponential")._lam(r) for r in range(4)]
    assert lam == pytest.approx([1, 0.1, 0.01, 0], abs=1e-12)


def test_p_begins_at_the_shares_of_data():
    """n = (1, 3): p_0 = (1/4, 3/4); a = (0, 16), w = 16: g = 16, c_0 = 16 - 1/4 * 1/4 * 16 = 15,
    p = p_0 - 256/1024 = (0, 1/2). Uniform weighting: 1/2 each, c_0 = 14."""
    data = rows(0.0, n=1), rows(16.0, n=3)
    play = after_sizes(apple(), *data)
    assert play.server["apple"]["sizes"].tolist() == [1.0, 3.0]
    assert cores(play.round()) == [15.0, 16.0]
    assert p_of(play, 0) == [0.0, 0.5]
    assert cores(after_sizes(apple(weighting="uniform"), *data).round())[0] == 14.0


def test_the_round_of_sizes_carries_no_model():
    play = after_sizes(apple(), rows(0.0), rows(16.0, n=3))
    assert nbytes(play.down[0].state) == nbytes(play.up[0].state) == 0
    assert (play.up[1].n, play.own[1]) == (3, {})


def test_an_absent_client_keeps_p_and_its_core():
    play = after_sizes(apple(), rows(0.0), rows(32.0)).round().round(1)
    assert cores(play)[0] == 14.0
    assert p_of(play, 0) == [0.25, 0.25]


def test_only_the_core_travels_and_all_cores_come():
    """Down: two float64 cores and two float32 sizes; up: one core."""
    play = after_sizes(apple(), rows(0.0), rows(32.0)).round()
    assert nbytes(play.down[0].state) == 2 * 8 + 2 * 4
    assert {name: value(tree) for name, tree in play.up[0].state.items()} == {"model": 14.0}


def test_the_global_model_is_the_mixture_by_p_0():
    """Cores (15, 16) with p_0 = (1/4, 3/4): 15.75."""
    play = after_sizes(apple(), rows(0.0, n=1), rows(16.0, n=3)).round()
    assert server_value(play) == 15.75


def test_a_newcomer_learns_p_alone():
    """Cores (14, 18), p = p_0 = 1/2: it receives 16; a = 0, g = 16: p_j = 1/2 - 16 c_j/1024, so
    w = 14 (0.5 - 0.21875) + 18 (0.5 - 0.28125)."""
    play = after_sizes(apple(), rows(0.0), rows(32.0)).round()
    site = visited(play, 2, rows(0.0))
    assert site.newcomer
    assert personal(site) == 16.0
    site.method.local(site)
    assert personal(site) == 14 * 0.28125 + 18 * 0.21875


def test_one_client_with_a_fixed_p_is_fedavg_bit_for_bit():
    """p = (1) and w = c, BatchNorm's statistics included."""
    opt = Opt(lr=0.1, batch=3, epochs=2, momentum=0.5, weight_decay=1e-3)
    ends = [
        run(Program(m, mlp(norm=True), 1), tables(10), rounds=3).server[METHOD]
        for m in (FedAvg(opt=opt), APPLE(p_lr=0.0, opt=opt))
    ]
    assert same(*ends)


def test_dbe_keeps_its_translation_personal_and_unmixed():
    method = replace(parse_method("apple + dbe"), opt=Opt(lr=0.1, batch=4))
    played = run(Program(method, mlp(norm=True), 2), tables(9, 6), rounds=2)
    assert finite(played.server)
    assert not any(k.startswith("prbm") for tree in played.server.values() for k in tree)
    moved = [played.clients[cid][METHOD]["prbm.vector"] for cid in range(2)]
    assert not torch.equal(*moved)


@pytest.mark.parametrize("term", ["fedbr", "proximal", "model_contrast", "control_variates"])
def test_refuses_what_measures_against_the_received_model(term):
    with pytest.raises(BadInput, match="cannot be combined"):
        Program(parse_method(f"apple + {term}"), mlp(), 2)


@pytest.mark.parametrize(
    "wrong", [{"p_momentum": 1.0}, {"mu": -1.0}, {"fade_rounds": -1}, {"fading": "linear"}]
)
def test_bad_values(wrong):
    with pytest.raises(BadInput):
        APPLE(**wrong)
