"""Fed-RoD: balanced softmax below, a residual personal head above, and no gradient between them.

Most tests have rows x = 1 under a body of weight 1 without bias: z = 1, so a head's weights are its
logits, and a full-batch gradient for the row of class c is mean(p_c) - share of class c.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
import torch
from game import Game, cloud, identity, part, rows
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Batch
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedrod import FedRoD
from fedloom.ops.balanced import log_prior
from helpers import finite, mlp, same

ONE = Opt(lr=1.0, epochs=1, batch=64)
THREE_TO_ONE = rows([[1.0]] * 4, [0, 0, 0, 1], 2)
CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.1, epochs=2, batch=4, momentum=0.5)


def net(*logits: float) -> Net:
    network = identity(1, len(logits))
    network.initial["head.weight"].copy_(torch.tensor(logits)[:, None])
    return network


def one_loss(method: FedRoD, model: Net, data, row: int) -> float:
    """The method's loss on one row of a client."""
    s = Game(method, model, data).site(0)
    idx = torch.tensor([row])
    b = Batch(data.train.x(idx), data.train.y[idx], idx, data.train.y[idx])
    b.out = s.net(s.w, b.x)
    return float(method.loss(b, s))


@pytest.mark.parametrize(("gamma", "balanced"), [(1.0, log(4)), (0.5, log(1 + sqrt(3)))])
def test_balanced_softmax_by_hand(gamma, balanced):
    """Counts (3, 1), all logits 0, y = 1: -log 1^gamma / (3^gamma + 1^gamma), and beside it
    log 2 of the personal sum. Subtracting the prior would give log(4/3)."""
    loss = one_loss(FedRoD(gamma=gamma), net(0.0, 0.0), THREE_TO_ONE, row=3)
    assert loss == pytest.approx(balanced + log(2), abs=1e-6)


def test_one_step_moves_only_the_personal_head():
    """Generic logits (0, 0), shares (3/4, 1/4): balanced p = (3/4, 1/4) is the shares, so generic
    head and body stand still. Personal: p = (1/2, 1/2), gradient (-1/4, 1/4), lr 1: weights and
    biases become (1/4, -1/4). Plain cross-entropy would have moved the generic head as well."""
    game = Game(FedRoD(opt=ONE), net(0.0, 0.0), THREE_TO_ONE).round()
    for key in ("body.weight", "head.weight"):
        assert torch.allclose(game.server["model"][key], game.program.nets[0].initial[key])
    personal = game.own[0]["model"]
    assert personal["personal_head.weight"].flatten().tolist() == [0.25, -0.25]
    assert personal["personal_head.bias"].tolist() == [0.25, -0.25]


def test_the_personal_loss_is_of_the_sum():
    """Generic logits (log 3, 0) give p = (3/4, 1/4), the client's shares: with the residual sum
    there is nothing left for the personal head. Alone it would move by (1/4, -1/4)."""
    game = Game(FedRoD(opt=ONE), net(log(3), 0.0), THREE_TO_ONE).round()
    assert game.own[0]["model"]["personal_head.weight"].abs().max() < 1e-7


def test_the_second_step_uses_both():
    """Round 2 from personal (1/4, -1/4) twice (weight and bias), generic (0, 0): the sum is
    (1/2, -1/2), p_0 = 1/(1 + e^-1); row 0 becomes 1/4 - (p_0 - 3/4)."""
    game = Game(FedRoD(opt=ONE), net(0.0, 0.0), THREE_TO_ONE).rounds(2)
    expected = 0.25 - (1 / (1 + exp(-1)) - 0.75)
    weight = game.own[0]["model"]["personal_head.weight"].flatten().tolist()
    assert weight == pytest.approx([expected, -expected], abs=1e-6)


@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_an_absent_class_is_not_pushed_down(gamma):
    """Counts (3, 1, 0): class 2 has weight 0^gamma = 0 in the balanced softmax, so its generic row
    keeps its value exactly, where plain cross-entropy (or a floored count) would lower it."""
    data = rows([[1.0]] * 4, [0, 0, 0, 1], 3)
    game = Game(FedRoD(gamma=gamma, opt=ONE), net(0.0, 0.5, 0.25), data).round()
    head = game.server["model"]["head.weight"].flatten()
    assert head[2] == 0.25
    assert not torch.allclose(head[:2], torch.tensor([0.0, 0.5]))
    assert log_prior(torch.tensor([3.0, 1.0, 0.0]), gamma).isfinite().all()


def test_gamma_0_leaves_the_generic_side_fedavgs_bit_for_bit():
    """Neither the personal head nor its loss touches body or generic head: no gradient goes
    through z and none through the generic logits in the sum."""
    runs = [
        Game(method, mlp(norm=True), *CLOUDS).round().round(0, 2).round(1, 3)
        for method in (FedRoD(gamma=0.0, opt=OPT), FedAvg(opt=OPT))
    ]
    assert same(runs[0].server["model"], runs[1].server["model"])
    assert runs[0].own[0]["model"]["personal_head.weight"].abs().max() > 0.01


def test_gamma_is_on_by_default():
    a, b = (
        Game(FedRoD(gamma=g, opt=OPT), mlp(), *CLOUDS).round().server["model"] for g in (1.0, 0.0)
    )
    assert FedRoD().gamma == 1.0
    assert not same(a, b)


def test_prediction_is_the_sum_and_a_view_the_generic_head():
    game = Game(FedRoD(opt=ONE), net(log(3), 0.0), THREE_TO_ONE)
    s = game.site(0)
    w = {**s.w, "personal_head.bias": torch.tensor([0.0, log(6)])}
    x = torch.ones(1, 1)
    summed = game.program.method.predict(s.net, {"model": w}, x)
    generic = game.program.method.views(s.net, {"model": w}, x)["generic_head"]
    assert summed[0].tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)
    assert generic[0].tolist() == pytest.approx([3 / 4, 1 / 4], abs=1e-6)
    assert game.program.global_model_missing() == ""


def test_only_the_personal_head_stays():
    game = Game(FedRoD(opt=OPT), mlp(), *CLOUDS).round()
    assert set(game.own[0]["model"]) == {"personal_head.weight", "personal_head.bias"}
    assert not part(game.up[0].state["model"], "personal_head")


def test_features_may_be_maps():
    head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 3 * 3, 3))
    net = Program(FedRoD(), Net((1, 5, 5), body=nn.Conv2d(1, 2, 3), head=head), 1).nets[0]
    assert net(net.tree(), torch.zeros(2, 1, 5, 5))["personal_head"].shape == (2, 3)


@pytest.mark.parametrize("terms", ["fedbr", "dbe", "dbe + proximal"])
def test_terms_go_on_it(terms):
    method = replace(parse_method(f"fedrod + {terms}"), opt=OPT)
    game = Game(method, mlp(), *CLOUDS)
    for plan in game.program.schedule(1):
        game._play(plan, ())
    assert finite(game.server)


def test_a_negative_gamma_is_refused():
    with pytest.raises(BadInput, match="gamma is 0 or more"):
        FedRoD(gamma=-1.0)
