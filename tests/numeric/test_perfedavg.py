"""Per-FedAvg on quadratics f(w) = c (w - a)^2 / 2 and on a product net, by hand.

With H = c, F(w) = f(w - alpha grad f(w)) has the gradient (1 - alpha c) c (w~ - a), where
w~ - a = (1 - alpha c)(w - a): together c (1 - alpha c)^2 (w - a). Without the Hessian one factor
(1 - alpha c) is missing. Here c = 1 and alpha = 1/2 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from quadratic import Play, Squares, full, linear, point, product, rows, server_value, value
from torch import nn

from fedloom.core.adaptation import adapt
from fedloom.core.data import ClientData
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedprox import Proximal
from fedloom.methods.perfedavg import PerFedAvg
from fedloom.models import build_model
from helpers import Table, Tables, finite, mlp, run, same, tables

VARIANTS = ("exact", "hessian_free", "first_order")


def perfedavg(variant="exact", lr=0.25, epochs=1, alpha=0.5, **more):
    return PerFedAvg(variant=variant, alpha=alpha, opt=full(lr, epochs), **more)


@pytest.mark.parametrize(
    ("variant", "w"), [("exact", 15.0), ("hessian_free", 15.0), ("first_order", 14.0)]
)
def test_one_step_by_hand(variant, w):
    """w = 16, a = 0, lr = 1/4: w~ = 8 and v = 8. First order: w = 16 - 8/4 = 14. With the
    Hessian: v = (1 - 1/2) 8 = 4, w = 15. Plain SGD would give 12."""
    play = Play(perfedavg(variant, delta=0.25), point(16.0), rows(0.0)).round()
    assert server_value(play) == w


def test_two_steps_begin_at_w_and_not_at_the_adapted_model():
    """Each step of lr 1/4 multiplies w - a by 1 - 1/4 * 1/4 = 15/16: 16 -> 15 -> 14.0625. Going
    on from w~ would halve w on the way."""
    play = Play(perfedavg(epochs=2, delta=0.25), point(16.0), rows(0.0)).round()
    assert server_value(play) == 14.0625


@pytest.mark.parametrize(("variant", "error"), [("exact", 1e-12), ("hessian_free", 1e-9)])
def test_the_hessian_of_a_curved_loss(variant, error):
    """f = (bh - a)^2/2 at b = 2, h = 1, a = 1: r = bh - a = 1, grad = (r h, r b) = (1, 2);
    alpha = 1/4: b~ = 1.75, h~ = 0.5, r~ = -0.125, v = (-0.0625, -0.21875).
    H = [[h^2, r + bh], [r + bh, b^2]] = [[1, 3], [3, 4]], Hv = (-0.71875, -1.0625),
    v - alpha Hv = (0.1171875, 0.046875). lr = 1. Central differences err by delta^2 |v|^3."""
    method = perfedavg(variant, alpha=0.25, lr=1.0, delta=1e-4)
    play = Play(method, product(2.0, 1.0), rows(1.0)).round()
    got = [server_value(play, k) for k in ("body.weight", "head.weight")]
    assert got == pytest.approx([2 - 0.1171875, 1 - 0.046875], abs=error)


def test_a_relu_that_switches_does_not_inflate_the_exact_product():
    """f = (h relu(b) - a)^2/2 at b = 1e-4, h = 1, a = 1, alpha = 1/4, lr = 1: r = -0.9999 and
    grad = (r h, r b), so b~ = 0.250075, h~ = 1.00002..., v = (r~ h~, r~ b~). To the right of b = 0
    H = [[h^2, r + bh], [r + bh, b^2]]. The difference reaches b - delta v < 0, where the gradient
    in b is 0: it is off by about r h / (2 delta) = 500."""
    b, h, a, alpha = 1e-4, 1.0, 1.0, 0.25
    r = b * h - a
    b_, h_ = b - alpha * r * h, h - alpha * r * b
    v = ((b_ * h_ - a) * h_, (b_ * h_ - a) * b_)
    hv = (h * h * v[0] + (r + b * h) * v[1], (r + b * h) * v[0] + b * b * v[1])
    expected = [b - (v[0] - alpha * hv[0]), h - (v[1] - alpha * hv[1])]
    ends = {}
    for variant in ("exact", "hessian_free"):
        net = Net((1,), body=nn.Sequential(linear([b]), nn.ReLU()), head=linear([h]))
        play = Play(perfedavg(variant, alpha=alpha, lr=1.0), net, rows(a)).round()
        ends[variant] = [server_value(play, k) for k in ("body.0.weight", "head.weight")]
    assert ends["exact"] == pytest.approx(expected, abs=1e-9)
    assert abs(ends["hessian_free"][0] - expected[0]) > 10
    assert PerFedAvg().variant == "exact"


def test_attention_has_a_second_derivative():
    """torch's fused attention has none, and the transformer uses it everywhere else."""
    net = build_model("cct7_3x1", (1, 8, 8), 3, seed=0)
    data = ClientData(Table(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])), None, None, 3)
    method = PerFedAvg(opt=Opt(lr=0.01, batch=4))
    assert finite(run(Program(method, net, 1), Tables([data]), rounds=1).server)


def test_the_step_before_a_test_is_plain_and_of_size_alpha():
    """After the round w = 15; adapted once with alpha = 1/2: 7.5; twice: 3.75. The meta-step
    would leave 14.0625, and lr instead of alpha 11.25. The server keeps w."""
    for steps, w in ((1, 7.5), (2, 3.75)):
        method = perfedavg(delta=0.25, adapt_steps=steps)
        play = Play(method, point(16.0), rows(0.0)).round().adapt()
        assert value(play.own[0]["final/model"]) == w
        assert server_value(play) == 15.0
    assert PerFedAvg(adapt_steps=0).adapt == ()


def test_the_inner_step_has_the_runs_decay_but_no_weight_decay():
    """decay 1/2, one client at w = 16, a = 0, alpha = 1/2, first order. Round 1: 16 - 8/4 = 14.
    Round 2: alpha = 1/4, w~ = 10.5, lr = 1/8: 14 - 10.5/8 = 12.6875. The test of round 3 takes
    alpha/4 = 1/8 without weight decay: 12.6875 * 7/8."""
    slow = replace(perfedavg("first_order"), opt=full(0.25, decay=0.5))
    play = Play(slow, point(16.0), rows(0.0)).round().round()
    assert server_value(play) == 12.6875
    heavy = replace(slow, opt=full(0.25, decay=0.5, weight_decay=0.5, momentum=0.9, clip=0.1))
    play.program = Program(heavy, point(16.0), 1, task=Squares())
    site = play.adapt().site(0)
    adapt(site)
    assert value(play.own[0]["final/model"]) == 12.6875 * 7 / 8
    assert value(site.w) == 12.6875 / 2  # round 1's alpha again


def test_clients_count_alike():
    """w = 0, a = (16, -32), n = (1, 4): steps to 1 and -2, whose plain mean is -1/2."""
    play = Play(perfedavg(delta=0.25), point(0.0), rows(16.0, n=1), rows(-32.0, n=4)).round()
    assert server_value(play) == -0.5


@dataclass(frozen=True)
class SeenRows(Term):
    """Writes down which rows each gradient is of."""

    name: ClassVar[str] = "seen_rows"
    seen: ClassVar[list[list[int]]] = []

    def inputs(self, b, s):
        self.seen.append(b.idx.tolist())


def test_batches_of_a_step_are_separate_draws():
    """Twelve rows in batches of four: the outer batches are the loop's and cover every row once an
    epoch; the inner ones are other draws of as many rows."""
    data = ClientData(Table(torch.ones(12, 1).double(), torch.zeros(12, 1).double()), None, None, 1)
    SeenRows.seen.clear()
    method = PerFedAvg(opt=Opt(lr=0.1, batch=4)) + SeenRows()
    Play(method, point(1.0), data).round()
    inner, outer = SeenRows.seen[0::2], SeenRows.seen[1::2]
    assert sorted(i for idx in outer for i in idx) == list(range(12))
    assert all(len(set(idx)) == 4 for idx in inner)
    assert all(set(a) != set(b) for a, b in zip(inner, outer, strict=True))


@dataclass(frozen=True)
class RecordedTable(Table):
    """Writes down which rows are read."""

    read: ClassVar[list[list[int]]] = []

    def x(self, idx, gen=None):
        self.read.append(idx.tolist())
        return super().x(idx, gen)


def test_a_step_by_hand_of_its_three_batches():
    """f = (x w - a)^2/2 on seven unlike rows, batches of three: mean x^2 w - mean x a over D is the
    inner gradient, over D' at w~ it is v, and H is the mean of x^2 over D''. The loop reads D'."""
    x, a = torch.arange(1.0, 8).double()[:, None], torch.tensor([[3.0, -1, 4, 1, -5, 9, 2]]).mT
    a = a.double()
    RecordedTable.read.clear()
    data = ClientData(RecordedTable(x, a), None, None, 1)
    method = PerFedAvg(alpha=0.0625, delta=0.25, opt=Opt(lr=0.125, batch=3, steps=1))
    play = Play(method, point(2.0), data).round()
    outer, inner, third = RecordedTable.read
    assert len({frozenset(rows) for rows in (outer, inner, third)}) == 3

    def slope(w, rows):
        return ((w * x - a) * x)[rows].mean().item()

    v = slope(2.0 - 0.0625 * slope(2.0, inner), outer)
    step = v - 0.0625 * (x[third] ** 2).mean().item() * v
    assert server_value(play) == pytest.approx(2.0 - 0.125 * step, rel=1e-12)


@dataclass(frozen=True)
class Push(Term):
    """A gradient correction: 4 more."""

    name: ClassVar[str] = "push"

    def grads(self, g, s):
        return {k: v + 4 for k, v in g.items()}


@pytest.mark.parametrize(("variant", "w"), [("exact", 14.5), ("first_order", 13.0)])
def test_gradient_corrections_are_of_v_alone(variant, w):
    """w = 16, a = 0: w~ = 8 as without it (6 if the inner gradient were corrected), v = 8 + 4.
    First order: 16 - 12/4 = 13; with the Hessian 16 - 6/4."""
    play = Play(perfedavg(variant, delta=0.25) + Push(), point(16.0), rows(0.0)).round()
    assert server_value(play) == w


def test_a_terms_gradient_is_taken_at_the_adapted_model():
    """Proximal(mu = 1) adds w - w_received: nothing at w = 16, and at w~ = 8 the pull 8 - 16 = -8,
    so v = 8 - 8 = 0 and w stays 16. Seen from s.w = 16 the pull would be 0 and w would be 14."""
    method = perfedavg("first_order") + Proximal(mu=1.0)
    assert server_value(Play(method, point(16.0), rows(0.0)).round()) == 16.0


def test_random_layers_do_not_turn_the_difference_into_noise():
    """Dropout over a linear body: with other masks at the two ends the difference quotient would
    be of size 1/delta = 1e5, alpha times of which is 1e3. With the same masks the step differs from
    the first-order one by alpha H v."""
    body = nn.Sequential(linear([1.0], [2.0], [-1.0], [0.5]), nn.Dropout(0.5))
    net = Net((1,), body=body, head=linear([1.0, -1.0, 0.5, 2.0]))
    x = torch.linspace(-1, 1, 65).double()[:, None]
    data = ClientData(Table(x, 3 * x), None, None, 1)
    ends = []
    for variant in ("first_order", "hessian_free"):
        play = Play(perfedavg(variant, alpha=0.01, delta=1e-5), net, data).round()
        ends.append(play.server[METHOD]["head.weight"])
    assert not torch.equal(*ends)
    assert torch.allclose(*ends, atol=0.1)


def test_running_statistics_follow_w_and_not_the_probes():
    """One step passes D through w and D' through w~; the two probes of H count for nothing."""
    for variant in VARIANTS:
        method = PerFedAvg(variant=variant, opt=Opt(lr=0.1, batch=64))
        played = run(Program(method, mlp(norm=True), 1), tables(9), rounds=1)
        assert int(played.server[METHOD]["body.1.num_batches_tracked"]) == 2


def test_alpha_0_is_fedavg_with_equal_weights():
    """Bit for bit: the inner gradient is thrown away and moves no batch order."""
    opt, data = Opt(lr=0.1, batch=3, epochs=2, momentum=0.5), tables(7, 10)
    plain = FedAvg(opt=opt, weighting="uniform")
    for variant in VARIANTS:
        meta = PerFedAvg(alpha=0.0, variant=variant, adapt_steps=0, opt=opt)
        ends = [run(Program(m, mlp(), 2), data, rounds=3).server[METHOD] for m in (plain, meta)]
        assert same(*ends)


@pytest.mark.parametrize("term", ["dbe", "fedbr", "proximal(mu=0.1)", "control_variates"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_composes(term, variant):
    method = parse_method(f"perfedavg(variant={variant}) + {term}")
    program = Program(replace(method, opt=Opt(lr=0.1, batch=4)), mlp(norm=True), 2)
    played = run(program, tables(9, 6), rounds=2)
    assert finite(played.server)


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"delta": 0.0}, {"variant": "third_order"}])
def test_bad_values(wrong):
    with pytest.raises(BadInput):
        PerFedAvg(**wrong)
