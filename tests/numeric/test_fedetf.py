"""FedETF: the simplex, its balanced loss by hand, what moves when, and FedAvg inside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from typing import ClassVar

import pytest
import torch
from game import Game, cloud, identity, part, rows
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedetf import FedETF, SimplexHead
from fedloom.ops.simplex_etf import simplex_etf
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.1, epochs=2, batch=4, momentum=0.5)
K = 3


@pytest.mark.parametrize(("classes", "dims"), [(2, 2), (3, 3), (4, 9), (10, 10), (10, 64)])
def test_angles_of_the_simplex(classes, dims):
    """Unit vectors, every pair at cosine -1/(K - 1), hence summing to zero. Centring without the
    factor sqrt(K/(K - 1)) would leave lengths sqrt(1 - 1/K)."""
    v = simplex_etf(classes, dims)
    cosines = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1.0)
    assert torch.allclose(v @ v.T, cosines, atol=1e-6)
    assert v.sum(0).abs().max() < 1e-6


SIMPLEX = torch.tensor([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.0]]) / 6**0.5
COUNTS = rows([[1.0, 0.0, 0.0]] * 5, [0, 0, 0, 1, 1], K)  # class 2 is absent


def standing(length: float = 1.0, **settings) -> Game:
    """Five rows at vertex 0, counts (3, 2, 0), g(f(x)) = x, beta 2, and a rate of zero: cosines
    are (1, -1/2, -1/2), logits (2, -1, -1), and the logged loss is (3 l_0 + 2 l_1)/5."""
    data = rows((length * SIMPLEX[:1]).expand(5, 3).tolist(), [0, 0, 0, 1, 1], K)
    method = FedETF(beta=2.0, opt=Opt(lr=0.0, epochs=1, batch=64), **settings)
    game = Game(method, identity(3, K), data)
    game.server["model"] |= {
        "projection.1.weight": torch.eye(3),
        "projection.1.bias": torch.zeros(3),
        "head.vertices": SIMPLEX,
    }
    return game


@pytest.mark.parametrize("length", [1.0, 7.0])
@pytest.mark.parametrize(("gamma", "weights"), [(1.0, (3, 2)), (0.5, (3**0.5, 2**0.5))])
def test_balanced_feature_loss_by_hand(length, gamma, weights):
    """p_0 = 3^g e^2 / (3^g e^2 + 2^g e^-1), class 2 having no part in it; lengths do not count."""
    a, b = weights[0] * exp(2), weights[1] * exp(-1)
    expected = -(3 * log(a / (a + b)) + 2 * log(b / (a + b))) / 5
    loss = standing(length, gamma=gamma).round().up[0].metrics["loss"]
    assert loss == pytest.approx(expected, abs=1e-5)


def test_personal_training_is_balanced_first_and_plain_then():
    """Balanced: as above. Plain: l_y = log(e^2 + 2 e^-1) - logit_y, with class 2: logits average
    (3 * 2 - 2)/5 = 4/5. The loss logged is that of the last phase."""
    a, b = 3 * exp(2), 2 * exp(-1)
    loss = standing(alternations=0).adapt().up[0].metrics["loss"]
    assert loss == pytest.approx(-(3 * log(a / (a + b)) + 2 * log(b / (a + b))) / 5, abs=1e-5)
    still = {"alternations": 1, "simplex_lr": 0.0, "projection_lr": 0.0}
    loss = standing(**still).adapt().up[0].metrics["loss"]
    assert loss == pytest.approx(log(exp(2) + 2 * exp(-1)) - 4 / 5, abs=1e-5)


def test_the_temperature_is_trained():
    """One step at lr 1 from beta = 1 with all of counts (3, 2, 0) at u: beta falls by
    mean_n (sum_c p_c cos_c - cos_y), p the balanced softmax."""
    game = Game(FedETF(opt=Opt(lr=1.0, epochs=1, batch=64)), identity(3, K), COUNTS)
    net = game.program.nets[0]
    cosines = net(net.tree(), COUNTS.train.rows[:1], want="head")["head"][0].double()
    p = (cosines + torch.tensor([3.0, 2.0, 0.0]).log()).softmax(0)
    slope = (p * cosines).sum() - (3 * cosines[0] + 2 * cosines[1]) / 5
    game.round()
    assert abs(float(slope)) > 1e-3
    assert float(game.server["model"]["head.beta"]) == pytest.approx(1 - float(slope), abs=1e-5)


def test_the_simplex_stands_still_in_rounds_and_moves_in_adaptation():
    game = Game(FedETF(opt=OPT, alternations=1, turn_epochs=1), mlp(), *CLOUDS)
    vertices = game.program.nets[0].initial["head.vertices"]
    game.round().round(0, 2).round(1, 3)
    assert torch.equal(game.server["model"]["head.vertices"], vertices)
    before = game.server["model"]
    game.adapt()
    final = game.own[0]["final/model"]
    assert not any(torch.equal(final[k], before[k]) for k in before)
    assert same(game.server["model"], before)


@dataclass(frozen=True)
class WatchedPhases(Term):
    """Writes down phase, rate and keys at every step."""

    name: ClassVar[str] = "watched_phases"
    seen: ClassVar[list[tuple[str, float, list[str]]]] = []

    def loss(self, b, s):
        self.seen.append((s.phase.name, s.lr, sorted(s.keys)))
        return 0.0


def test_what_adaptation_trains_in_which_order_and_how_fast():
    """E = 2 epochs of all but the simplex; then twice three epochs of the simplex and three of the
    projection. A client of one row: a step is an epoch."""
    WatchedPhases.seen.clear()
    Game(FedETF(opt=OPT, alternations=2) + WatchedPhases(), mlp(), CLOUDS[2]).adapt()
    body, projection = (
        [f"{stage}.bias", f"{stage}.weight"] for stage in ("body.0", "projection.1")
    )
    turns = [("simplex", 0.1, ["head.vertices"])] * 3 + [("projection", 0.05, projection)] * 3
    assert WatchedPhases.seen == [("whole", 0.1, [*body, "head.beta", *projection])] * 2 + turns * 2


def test_the_published_adaptation_is_the_default():
    """In the code: E epochs of a round, then 20 times 3 and 3; plain SGD for the simplex."""
    phases = FedETF(opt=OPT).adapt
    assert [p.over(OPT).opt.epochs for p in phases] == [2] + [3] * 40
    assert [(p.over(OPT).opt.lr, p.over(OPT).opt.momentum) for p in phases[:3]] == [
        (0.1, 0.5),
        (0.1, 0.0),
        (0.05, 0.5),
    ]
    assert FedETF(adapt_epochs=0, alternations=0).adapt == ()
    assert [p.name for p in FedETF(adapt_epochs=0, alternations=1).adapt] == [
        "simplex",
        "projection",
    ]


def test_without_a_prior_it_is_fedavg_under_a_frozen_simplex():
    """gamma = 0, bit for bit; and the default is not that."""
    etf = Game(FedETF(gamma=0.0, opt=OPT), mlp(), *CLOUDS)
    start = etf.program.nets[0].tree()
    head = SimplexHead(K, 5, 1.0)
    head.vertices.requires_grad_(False)
    body = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    twin = Net((4,), body=body, projection=nn.Sequential(nn.Flatten(), nn.Linear(5, 5)), head=head)
    twin.load_state_dict(start)
    avg = Game(FedAvg(opt=OPT), twin, *CLOUDS)
    balanced = Game(FedETF(opt=OPT), mlp(), *CLOUDS)
    for cohort in ((), (0, 2), (1, 3)):
        etf.round(*cohort), avg.round(*cohort), balanced.round(*cohort)
    assert same(etf.server["model"], avg.server["model"])
    assert not same(part(balanced.server["model"], "body"), part(avg.server["model"], "body"))


@pytest.mark.parametrize("terms", ["fedbr", "dbe", "mixup"])
def test_terms_go_on_it(terms):
    game = Game(replace(parse_method(f"fedetf(alternations=1) + {terms}"), opt=OPT), mlp(), *CLOUDS)
    for plan in game.program.schedule(1):
        game._play(plan, ())
    assert finite(game.server)


def test_few_features_are_projected_to_enough_dimensions():
    net = Program(FedETF(), mlp(hidden=2), 1).nets[0]
    assert net.initial["head.vertices"].shape == (K, K)
    assert net(net.tree(), torch.zeros(2, 4))["head"].shape == (2, K)


def test_what_cannot_be_is_refused():
    with pytest.raises(BadInput, match="beta must be more than 0"):
        FedETF(beta=0.0)
    with pytest.raises(BadInput, match="0 or more"):
        FedETF(gamma=-1.0)
    with pytest.raises(BadInput, match="turn_epochs 1 or more"):
        FedETF(turn_epochs=0)
    with pytest.raises(BadInput, match="as many dimensions"):
        Program(FedETF(dim=2), mlp(), 1)
