"""pFedMe on quadratics f(theta) = (theta - a)^2 / 2.

An inner step is theta <- theta - r ((theta - a) + lam (theta - w)), which contracts by
q = 1 - r (1 + lam) to the proximal point p = (a + lam w)/(1 + lam): theta_K = p + q^K (w - p) from
theta = w. Then w <- w - lr lam (w - theta). Here lam = 3, so p = (a + 3w)/4, and r = 1/8: q = 1/2.
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
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.pfedme import PFedMe
from helpers import finite, mlp, run, tables

LR = 0.125


def pfedme(lr=LR, epochs=1, lam=3.0, steps=2, inner_lr=0.125, **more):
    return PFedMe(lam=lam, steps=steps, inner_lr=inner_lr, opt=full(lr, epochs), **more)


def test_one_step_by_hand():
    """w = 16, a = 0: p = 12, theta_2 = 12 + 4/4 = 13; w = 16 - 1/8 * 3 * 3 = 14.875. Without lam
    in the outer step w would be 15.625; trained by SGD alone, 14."""
    play = Play(pfedme(), point(16.0), rows(0.0)).round()
    assert kept(play, 0, "pfedme") == 13.0
    assert server_value(play) == 14.875


def test_many_inner_steps_reach_the_proximal_point():
    """theta -> p = (a + lam w)/(1 + lam), and the outer step is the gradient of the Moreau
    envelope lam/(2 (1 + lam)) (w - a)^2: w - lr lam/(1 + lam) (w - a)."""
    for lam in (1.0, 3.0):
        method = pfedme(lam=lam, steps=200)
        play = Play(method, point(16.0), rows(-8.0)).round()
        assert kept(play, 0, "pfedme") == pytest.approx((-8 + 16 * lam) / (1 + lam), abs=1e-12)
        assert server_value(play) == pytest.approx(16 - LR * lam / (1 + lam) * 24, abs=1e-12)


def test_theta_begins_anew_at_w_or_goes_on():
    """K = 1. First step: p = 12, theta = 14, w = 16 - 3/8 * 2 = 15.25. Second, p = 11.4375: anew
    theta = p + (15.25 - p)/2 = 13.34375; warm, from 14, theta = p + (14 - p)/2 = 12.71875."""
    for warm, theta in ((False, 13.34375), (True, 12.71875)):
        play = Play(pfedme(epochs=2, steps=1, warm_start=warm), point(16.0), rows(0.0)).round()
        assert kept(play, 0, "pfedme") == theta
        assert server_value(play) == 15.25 - 0.375 * (15.25 - theta)


def test_a_round_begins_at_the_received_model_even_warm():
    """theta of the round before does not reach into the next one: with one step a round warm and
    cold are the same."""
    ends = []
    for warm in (False, True):
        play = Play(pfedme(warm_start=warm), point(16.0), rows(0.0), rows(8.0)).round().round()
        ends.append((server_value(play), kept(play, 0, "pfedme"), kept(play, 1, "pfedme")))
    assert ends[0] == ends[1]


def test_the_inner_steps_share_the_batch():
    """Two rows a and -a in batches of one: all K gradients of a step are of the same row, so
    theta of each step is p(+-a) and never the mix of both."""
    data = rows(0.0, n=2)
    data.train.y.copy_(torch.tensor([[64.0], [-64.0]]))
    method = replace(pfedme(steps=100), opt=Opt(lr=LR, batch=1))
    play = Play(method, point(0.0), data).round()
    # First p = +-16 and w = +-6; then p = (3 (+-6) -+ 64)/4 = -+11.5.
    assert abs(kept(play, 0, "pfedme")) == pytest.approx(11.5, abs=1e-9)


def test_server_mixes_with_beta():
    """w = 16, a = (0, 16): w_i = (14.875, 16), whose plain mean is 15.4375 though n = (1, 4).
    beta = 2: 16 + 2 (15.4375 - 16) = 14.875."""
    play = Play(pfedme(server=ServerOpt(lr=2.0)), point(16.0), rows(0.0), rows(16.0, n=4)).round()
    assert server_value(play) == 14.875


def test_theta_is_what_predicts_and_w_is_what_travels():
    play = Play(pfedme(), point(16.0), rows(0.0), rows(32.0)).round()
    assert {name: value(tree) for name, tree in play.up[0].state.items()} == {"model": 14.875}
    site = play.site(0)
    assert value(site.w) == 16.0  # 14.875 and 17.125
    assert value(site.method.personalize(site)["model"]) == 13.0
    play.program.method.local(play.site(0))  # on copies
    assert kept(play, 0, "pfedme") == 13.0


def test_an_absent_client_keeps_its_theta_and_a_late_one_begins_at_the_first_model_it_receives():
    play = Play(pfedme(), point(16.0), rows(0.0), rows(0.0)).round(0).round(0)
    assert value(play.site(1).method.personalize(play.site(1))["model"]) == server_value(play)
    theta = kept(play, 0, "pfedme")
    assert kept(play.round(1), 0, "pfedme") == theta


@dataclass(frozen=True)
class SeenModel(Term):
    """Writes down the weight at every gradient, which it would push by 8."""

    name: ClassVar[str] = "seen_model"
    seen: ClassVar[list[float]] = []

    def loss(self, b, s):
        self.seen.append(value(s.w))
        return 0.0

    def grads(self, g, s):
        return {k: v + 8 for k, v in g.items()}


def test_terms_see_theta_and_correct_nothing():
    """Inside hooks s.w is theta: 16, then p + (16 - p)/2 = 14 (13 with the correction), which
    leaves 13 as without the term."""
    SeenModel.seen.clear()
    play = Play(pfedme() + SeenModel(), point(16.0), rows(0.0)).round()
    assert SeenModel.seen == [16.0, 14.0]
    assert kept(play, 0, "pfedme") == 13.0


@pytest.mark.parametrize("term", ["proximal", "control_variates", "client_momentum"])
def test_refuses_corrections_of_gradients(term):
    """w's step is no gradient that they could correct."""
    with pytest.raises(BadInput, match="cannot be combined"):
        Program(parse_method(f"pfedme + {term}"), mlp(), 2)


def test_the_inner_rate_shares_the_runs_decay():
    """decay 1/2, K = 1. Round 1: theta = 16 - 16/8 = 14, w = 16 - 3/8 * 2 = 15.25. Round 2:
    inner_lr = 1/16, lr = 1/16: theta = w (1 - 1/16) and w = 15.25 - 3/16 * 15.25/16. At a rate that
    stays, theta would be 15.25 * 7/8."""
    method = replace(pfedme(steps=1), opt=full(LR, decay=0.5))
    play = Play(method, point(16.0), rows(0.0)).round()
    assert (kept(play, 0, "pfedme"), server_value(play)) == (14.0, 15.25)
    assert kept(play.round(), 0, "pfedme") == 15.25 * 15 / 16
    assert server_value(play) == 15.25 - 3 / 16 * 15.25 / 16


def test_one_weak_inner_step_is_nearly_fedavg():
    """theta = w - r g after one step from w, so the outer step is lr lam r g: with lam r = 1 it is
    FedAvg's, up to rounding."""
    opt, data = Opt(lr=0.1, batch=3, epochs=2), tables(7, 10)
    methods = (FedAvg(opt=opt), PFedMe(lam=4.0, inner_lr=0.25, steps=1, opt=opt))
    ends = [
        run(Program(replace(m, weighting="uniform"), mlp(norm=True), 2), data, 2).server[METHOD]
        for m in methods
    ]
    assert all(torch.allclose(ends[0][k], ends[1][k], atol=1e-5) for k in ends[0])


def test_thetas_running_statistics_are_those_of_w():
    played = run(Program(PFedMe(opt=Opt(lr=0.1, batch=4)), mlp(norm=True), 1), tables(8), rounds=1)
    theta, w = played.clients[0]["pfedme"], played.server[METHOD]
    assert int(w["body.1.num_batches_tracked"]) == 10  # two batches, five passes each
    assert torch.equal(theta["body.1.running_mean"], w["body.1.running_mean"])
    assert not torch.equal(theta["body.0.weight"], w["body.0.weight"])


@pytest.mark.parametrize("term", ["dbe", "fedbr", "feddecorr"])
def test_composes(term):
    method = replace(parse_method(f"pfedme + {term}"), opt=Opt(lr=0.05, batch=4))
    played = run(Program(method, mlp(norm=True), 2), tables(9, 6), rounds=2)
    assert finite(played.server)
    if term == "dbe":  # theta carries a translation of its own, which moved and did not leave
        assert played.clients[0]["pfedme"]["prbm.vector"].abs().max() > 0
        assert "prbm.vector" not in played.server[METHOD]


@pytest.mark.parametrize("wrong", [{"lam": 0.0}, {"inner_lr": 0.0}, {"steps": 0}])
def test_bad_values(wrong):
    with pytest.raises(BadInput):
        PFedMe(**wrong)
