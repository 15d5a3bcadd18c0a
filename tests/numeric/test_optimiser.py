"""Local steps against numbers by hand: momentum, weight decay, clipping, decay.

f(w) = (w - a)^2 / 2 has the gradient w - a; product nets have db = h r, dh = b r with r = hb - a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from quadratic import Play, Spy, full, linear, point, product, rows, server_value

from fedloom.core.term import Term
from fedloom.errors import TrainingError
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedprox import Proximal
from fedloom.methods.fedrep import FedRep


def trained(net, a=0.0, terms=(), rounds=1, key="head.weight", **opt):
    play = Play(FedAvg(opt=full(**opt), terms=terms), net, rows(a))
    for _ in range(rounds):
        play.round()
    return server_value(play, key)


@pytest.mark.parametrize(("steps", "w"), [(1, 6.0), (2, 3.5), (3, 1.375)])
def test_momentum(steps, w):
    """w = 8, lr = 1/4, momentum 1/2: m = 8, w = 6; m = 4 + 6 = 10, w = 3.5;
    m = 5 + 3.5 = 8.5, w = 1.375."""
    assert trained(point(8.0), epochs=steps, momentum=0.5) == w


def test_momentum_does_not_cross_rounds():
    """Two rounds of one step each are plain: 8 -> 6 -> 4.5 (with m kept it would be 3.5)."""
    assert trained(point(8.0), rounds=2, momentum=0.5) == 4.5


def test_momentum_does_not_cross_phases():
    """FedRep, one epoch each, momentum 1/2, b = h = 1, a = 3: the body's first step has no history:
    h = 1.5, b = 1 - 1/4 * 1.5 (1.5 - 3) = 1.5625."""
    opt = full(momentum=0.5)
    play = Play(FedRep(opt=opt, head_epochs=1, body_epochs=1), product(1.0, 1.0), rows(3.0)).round()
    assert server_value(play, "body.weight") == 1.5625


@pytest.mark.parametrize(("steps", "w"), [(1, 5.0), (2, 3.125)])
def test_weight_decay(steps, w):
    """w = 8, lr = 1/4, decay 1/2: 8 - (8 + 4)/4 = 5; 5 - (5 + 2.5)/4 = 3.125."""
    assert trained(point(8.0), epochs=steps, weight_decay=0.5) == w


def test_weight_decay_enters_the_momentum():
    """m = 12, w = 5; m = 6 + 7.5 = 13.5, w = 5 - 3.375 = 1.625."""
    assert trained(point(8.0), epochs=2, weight_decay=0.5, momentum=0.5) == 1.625


@pytest.mark.parametrize(("clip", "b", "h"), [(2.5, 2.5, 1.0), (5.5, 1.0, -1.0), (0.0, 1.0, -1.0)])
def test_clip_bounds_the_norm_over_all_tensors(clip, b, h):
    """b = 4, h = 3, a = 11: r = 1, gradient (3, 4) of norm 5. Clip 2.5 halves both: lr = 1 gives
    b = 4 - 1.5, h = 3 - 2 (each tensor by itself would be 1.5 and 0.5). A bound above 5, or 0,
    changes nothing. (torch divides by the norm + 1e-6.)"""
    found = [
        trained(product(4.0, 3.0), a=11.0, lr=1.0, clip=clip, key=k)
        for k in ("body.weight", "head.weight")
    ]
    assert found == pytest.approx([b, h], abs=1e-6)


def test_clip_is_before_weight_decay():
    """w = 8, clip 1: the loss's gradient 8 becomes 1, then 4 is added: 8 - (1 + 4)/4 = 6.75."""
    assert trained(point(8.0), clip=1.0, weight_decay=0.5) == pytest.approx(6.75, abs=1e-6)


def test_clip_is_after_a_terms_correction():
    """FedProx, mu = 1, anchor 8, clip 4, lr = 1/4: gradients 8, 7 - 1, 6 - 2 become 4, 4, 4:
    7, 6, 5. Clipped before the correction, the second step would be by 4 - 1."""
    w = trained(point(8.0), terms=(Proximal(mu=1.0),), epochs=3, clip=4.0)
    assert w == pytest.approx(5.0, abs=1e-5)


def test_learning_rate_decays_once_a_round():
    """lr = 1/2, 1/4, 1/8 in rounds 1 to 3, one step each: 8 -> 4 -> 3 -> 2.625. Two epochs within
    a round share their rate: 8 -> 4 -> 2."""
    assert [trained(point(8.0), rounds=t, lr=0.5, decay=0.5) for t in (1, 2, 3)] == [
        4.0,
        3.0,
        2.625,
    ]
    assert trained(point(8.0), lr=0.5, epochs=2, decay=0.5) == 2.0


@dataclass(frozen=True)
class Gain(Term):
    """A term with a shared stage of one weight behind the body."""

    name: ClassVar[str] = "gain"
    keeps: ClassVar[str] = "shared"

    def extend(self, net, clients):
        net.insert("gain", linear([1.0]))


def test_a_terms_stage_is_trained_without_weight_decay():
    """Output g h with g = 1 (the term's), h = 8, a = 8: the residual is 0, so only weight decay
    moves anything: h = 8 - 1/4 * 4 = 7, while g stays 1. Without decay and a = 0: r = 8,
    g = 1 - 8 * 8/4 = -15."""
    decayed = {"terms": (Gain(),), "weight_decay": 0.5, "a": 8.0}
    assert trained(point(8.0), **decayed) == 7.0
    assert trained(point(8.0), **decayed, key="gain.weight") == 1.0
    assert trained(point(8.0), terms=(Gain(),), key="gain.weight") == -15.0


def test_steps_are_what_the_loop_takes():
    """Steps 3 at lr = 1/2 from 8: 8/8 = 1."""
    Spy.seen.clear()
    assert trained(point(8.0), terms=(Spy(),), lr=0.5, epochs=7, steps=3) == 1.0
    assert [s[3]["head.weight"].item() for s in Spy.seen] == [8.0, 4.0, 2.0]


def test_divergence_names_client_round_and_what_to_do():
    """lr = 1e200 overflows at the second step; the message names where and offers lr and clip."""
    with pytest.raises(TrainingError, match=r"client 0, round 1, phase 'local'.*lower lr"):
        trained(point(8.0), lr=1e200, epochs=4)
