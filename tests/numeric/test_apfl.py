"""APFL on quadratics f(w) = (w - a)^2 / 2, whose gradient anywhere is the distance to a.

A plausible mistake is to train v on its own loss, v <- v - lr (v - a), or to leave out the factor
alpha that the chain rule gives; another to use values that the same step has already moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from quadratic import Play, full, kept, point, rows, server_value, value

from fedloom.core.net import METHOD
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.core.tree import Tree, clone
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.apfl import APFL
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedbr import FedBR
from fedloom.methods.local import Local
from fedloom.methods.scaffold import ControlVariates
from helpers import finite, mlp, play, run, same, tables

OPT = Opt(lr=0.1, batch=3, epochs=2, momentum=0.5, weight_decay=1e-3)


def fixed(alpha=0.5, lr=0.25, epochs=1):
    return APFL(alpha=alpha, learn_alpha=False, opt=full(lr, epochs))


def test_two_steps_by_hand():
    """w = v = 16, a = 0, alpha = 1/2, lr = 1/4.

    Step 1: m = 16, w = 12, v = 16 - 1/4 * 1/2 * 16 = 14 (12 without the factor alpha, and on its
    own loss). Step 2: m = (14 + 12)/2 = 13 from the values before the step, w = 9,
    v = 14 - 13/8 = 12.375 (with the new w = 9 it would be 12.5625).
    """
    play = Play(fixed(epochs=2), point(16.0), rows(0.0)).round()
    assert (server_value(play), kept(play, 0, "apfl")) == (9.0, 12.375)
    assert kept(play, 0, "apfl", "alpha") == 0.5


def test_v_stays_v_and_the_mixture_is_what_predicts():
    """a = (0, 32), w = 16, one step: w_i = (12, 20), v = (14, 18), server 16. The personal model
    of client 0 is (14 + 16)/2 = 15: neither v, nor w, nor the mixture with its own w_0 (13). In
    the next round v goes on from 14: m = 15, v = 14 - 15/8 = 12.125; had v been overwritten by
    the mixture, 13 or 15 would have come before."""
    play = Play(fixed(), point(16.0), rows(0.0), rows(32.0)).round()
    site = play.site(0)
    assert value(site.w) == 16.0
    assert value(site.method.personalize(site)["model"]) == 15.0
    assert kept(play, 0, "apfl") == 14.0
    assert {name: value(tree) for name, tree in play.up[0].state.items()} == {"model": 12.0}
    assert kept(play.round(), 0, "apfl") == 12.125


def test_alphas_gradient_by_hand():
    """a = 12, w = v = 16, alpha = 1/2, lr = 1/4. Step 1: v = w, so alpha stays; g = 4, w = 15,
    v = 15.5. Step 2: m = 15.25, g = 3.25, slope = g (v - w) = 1.625, alpha = 0.5 - 0.40625;
    v = 15.5 - 1/4 * 1/2 * 3.25 with the old alpha; w = 14.25."""
    play = Play(APFL(alpha_every="step", opt=full(0.25, 2)), point(16.0), rows(12.0)).round()
    assert kept(play, 0, "apfl", "alpha") == 0.09375
    assert (kept(play, 0, "apfl"), server_value(play)) == (15.09375, 14.25)


def test_alpha_moves_in_the_first_step_of_a_round():
    """a = 12, w = v = 16, alpha = 1/2, lr = 1/8. Step 1: v = w; w = 15.5, v = 15.75. Step 2 leaves
    alpha at 1/2: m = 15.625, w = 15.0625, v = 15.75 - 3.625/16 = 15.5234375. Round 2 begins with
    m = 15.29296875, g = 3.29296875, v - w = 0.4609375: alpha = 0.5 - g * 0.4609375 / 8, and its
    second step leaves that alone."""
    play = Play(APFL(opt=full(0.125, 2)), point(16.0), rows(12.0)).round()
    assert kept(play, 0, "apfl", "alpha") == 0.5
    assert (kept(play, 0, "apfl"), server_value(play)) == (15.5234375, 15.0625)
    expected = 0.5 - 3.29296875 * 0.4609375 / 8
    assert kept(play.round(), 0, "apfl", "alpha") == pytest.approx(expected, abs=1e-7)


def test_alpha_grows_where_v_is_the_better_model_and_stays_in_the_unit_interval():
    """Client 0 has a = 0, the others pull w up: v is nearer to 0 than w is, so alpha rises to 1.
    Where v lags behind w (one client alone, as above) it falls to 0. Neither passes its end."""
    every_step = APFL(alpha_every="step", opt=full(0.25, 2))
    many = Play(every_step, point(16.0), rows(0.0), *[rows(32.0)] * 3)
    for _ in range(6):
        many.round()
    assert kept(many, 0, "apfl", "alpha") == 1.0
    alone = Play(every_step, point(16.0), rows(0.0)).round().round()
    assert kept(alone, 0, "apfl", "alpha") == 0.0


def test_clients_count_alike_and_the_absent_keep_their_v():
    """w = 16, a = (0, 16), n = (1, 4): w_i = (12, 16), mean 14. Client 0 stays away: its v = 14."""
    play = Play(fixed(), point(16.0), rows(0.0), rows(16.0, n=4)).round()
    assert server_value(play) == 14.0
    assert kept(play.round(1), 0, "apfl") == 14.0


@pytest.mark.parametrize("norm", [False, True])
def test_the_global_model_is_fedavgs_bit_for_bit(norm):
    """The personal side moves no batch order, no tensor and no running statistics of w."""
    plain = FedAvg(opt=OPT, weighting="uniform")
    for method in (APFL(opt=OPT), APFL(opt=OPT, alpha=1.0, learn_alpha=False)):
        ends = [
            run(Program(m, mlp(norm=norm), 2), tables(7, 10), rounds=3).server[METHOD]
            for m in (plain, method)
        ]
        assert same(*ends)


def test_alpha_1_is_local_training_bit_for_bit():
    """m = v: momentum, weight decay and BatchNorm's statistics are those of Local too."""
    played = [
        run(Program(m, mlp(norm=True), 2), tables(7, 10), rounds=3)
        for m in (APFL(opt=OPT, alpha=1.0, learn_alpha=False), Local(opt=OPT))
    ]
    for cid in range(2):
        v = {k: x for k, x in played[0].clients[cid]["apfl"].items() if k != "alpha"}
        assert same(v, played[1].clients[cid][METHOD])


def test_alpha_0_predicts_with_the_global_model():
    """To the bit, and v never moves."""
    play = Play(fixed(0.0), point(16.0), rows(0.0), rows(32.0, n=2)).round()
    site = play.site(0)
    assert value(site.method.personalize(site)["model"]) == server_value(play)
    assert kept(play, 0, "apfl") == 16.0


# ------------------------------------------------------------------ in sums


def personal(game, cid):
    site = game.site(cid)
    return value(site.method.personalize(site)[METHOD])


@dataclass(frozen=True)
class Push(Term):
    """A gradient correction: 8 more."""

    name: ClassVar[str] = "push"

    def grads(self, g, s):
        return {k: v + 8 for k, v in g.items()}


def test_gradient_corrections_move_w_alone():
    """As in the two steps by hand, but w's gradient is 8 more: w = 16 - 24/4 = 10, v = 14 (13 with
    the correction). Then m = 12, w = 10 - 18/4 = 5.5, v = 14 - 12/8 = 12.5."""
    game = Play(fixed(epochs=2) + Push(), point(16.0), rows(0.0)).round()
    assert (server_value(game), kept(game, 0, "apfl")) == (5.5, 12.5)


def test_control_variates_leave_the_personal_models_to_their_clients():
    """a = (8, -4): SCAFFOLD brings w to the mean 2, personal models come to 8 and -4. Corrected
    alike, these would end at 2 as well."""
    game = Play(APFL(opt=full(0.25, 2)) + ControlVariates(), point(0.0), rows(8.0), rows(-4.0))
    for _ in range(12):
        game.round()
    assert server_value(game) == pytest.approx(2.0, abs=0.01)
    assert [personal(game, 0), personal(game, 1)] == pytest.approx([8.0, -4.0], abs=0.02)


def test_a_special_round_leaves_v_and_alpha_where_they_were():
    """DBE trains before the first round and throws the weights away, those of v as well."""
    program = Program(replace(parse_method("apfl + dbe"), opt=OPT), mlp(norm=True), 2)
    special = program.schedule(1)[0]
    assert special.kind == "special"
    start = {**program.nets[0].tree(), "alpha": torch.tensor(0.5)}
    for own in play(program, tables(7, 10), [special]).clients.values():
        assert same(own["apfl"], start)


@dataclass(frozen=True)
class WatchedProjection(Term):
    """Writes down FedBR's projection before it moves."""

    name: ClassVar[str] = "watched_projection"
    seen: ClassVar[list[Tree]] = []

    def loss(self, b, s):
        self.seen.append(clone({k: v for k, v in s.w.items() if k.startswith("fedbr.")}))
        return 0.0


def test_the_mixture_reads_ws_projection_and_leaves_it_alone():
    """FedBR moves its projection itself, in every gradient. The gradient at the mixture begins
    with w's projection as w's own gradient has left it, which is where w's next one begins; v has
    no copy that would grow stale, and w is FedAvg's to the bit."""
    opt, data = Opt(lr=0.1, batch=3), tables(9)
    WatchedProjection.seen.clear()
    mixed = APFL(opt=opt) + WatchedProjection() + FedBR()
    game = run(Program(mixed, mlp(), 1), data, rounds=2)
    at_w, at_mixture = WatchedProjection.seen[0::2], WatchedProjection.seen[1::2]
    assert len(at_w) == 6
    assert all(map(same, at_mixture[:-1], at_w[1:]))
    assert not same(at_w[0], at_w[1])
    assert not any(k.startswith("fedbr.") for k in game.clients[0]["apfl"])
    plain = run(Program(FedAvg(opt=opt) + FedBR(), mlp(), 1), data, rounds=2)
    assert same(game.server[METHOD], plain.server[METHOD])


@pytest.mark.parametrize("term", ["dbe", "fedbr", "proximal(mu=0.1)", "control_variates"])
def test_composes(term):
    method = replace(parse_method(f"apfl + {term}"), opt=Opt(lr=0.05, batch=4))
    played = run(Program(method, mlp(norm=True), 2), tables(9, 6), rounds=2)
    assert finite(played.server)
    assert "alpha" not in played.server[METHOD]


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_bad_values(alpha):
    with pytest.raises(BadInput):
        APFL(alpha=alpha)
