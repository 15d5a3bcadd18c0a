"""MOON's contrast, against its formula and through the core.

With s_g = cos(z, z_g), s_p = cos(z, z_p) the loss is softplus((s_p - s_g)/tau), its gradient
sigma((s_p - s_g)/tau)/tau * (grad s_p - grad s_g), and grad cos(z, u) = u/(|z||u|) - cos z/|z|^2.

The net below has the representation z = body.weight (x = 1) under a zero head with target 0, so the
task's loss and gradients are exactly zero and the body moves by the contrast alone.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from quadratic import Play, Squares, full, linear, rows

from fedloom.core.client import client
from fedloom.core.message import Down
from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.site import Visit
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.moon import MOON
from fedloom.ops.contrastive import pair_contrast
from helpers import mlp, same, tables
from helpers import run as play_all

PREVIOUS = "model_contrast"


def sigma(a: float) -> float:
    return 1 / (1 + exp(-a))


def vectors(*values):
    return torch.tensor(values, dtype=torch.float64)


def net(z=(3.0, 4.0), head=(0.0, 0.0)) -> Net:
    return Net((1,), body=linear(*([v] for v in z)), head=linear(head))


def moon(mu=1.0, tau=0.5, lr=1.0, epochs=1):
    return replace(MOON(mu=mu, tau=tau), opt=full(lr, epochs))


def test_loss_and_gradient_by_hand():
    """z = (3, 4), z_g = (1, 0), z_p = (0, 2): s_g = 3/5, s_p = 4/5 (lengths do not count),
    tau = 1/2: loss = log(1 + e^0.4).
    grad s_g = (1/5, 0) - 0.6 (3, 4)/25 = (0.128, -0.096),
    grad s_p = (0, 1/5) - 0.8 (3, 4)/25 = (-0.096, 0.072); difference (-0.224, 0.168), times
    sigma(0.4)/tau = 2 sigma(0.4)."""
    z = vectors([3.0, 4.0]).requires_grad_()
    loss = pair_contrast(z, vectors([1.0, 0.0]), vectors([0.0, 2.0]), scale=2.0)
    assert loss.item() == pytest.approx(log(1 + exp(0.4)), abs=1e-12)
    (grad,) = torch.autograd.grad(loss, z)
    expected = [2 * sigma(0.4) * -0.224, 2 * sigma(0.4) * 0.168]
    assert grad[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_mean_over_the_batch():
    """Row 1 as above, row 2 with s_g = s_p: (log(1 + e^0.4) + log 2)/2."""
    loss = pair_contrast(
        vectors([3.0, 4.0], [1.0, 1.0]),
        vectors([1.0, 0.0], [1.0, 0.0]),
        vectors([0.0, 2.0], [0.0, 1.0]),
        scale=2.0,
    )
    assert loss.item() == pytest.approx((log(1 + exp(0.4)) + log(2)) / 2, abs=1e-12)


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 0.5), (1.0, 2.0)])
def test_one_step_away_from_the_previous_model(mu, tau):
    """Received z_g = z = (3, 4), kept z_p = (5, 0): s_g = 1, grad s_g = 0, s_p = 0.6,
    grad s_p = (0.128, -0.096). One step of lr = 1:
    z = (3, 4) - mu sigma(-0.4/tau)/tau (0.128, -0.096), and the logged loss is mu log(1 +
    e^{-0.4/tau}). Swapping z_g and z_p would give a zero step, for grad cos(z, z) = 0."""
    program = Program(moon(mu, tau), net(), 1, task=Squares())
    own = {"model": {}, PREVIOUS: {"body.weight": vectors([5.0], [0.0])}}
    down = Down(program.schedule(2)[1], {"model": net().tree()})
    up, own_after = client(Visit(program, 0, rows(0.0), down, own))
    scale = mu * sigma(-0.4 / tau) / tau
    z = up.state["model"]["body.weight"]
    assert z.flatten().tolist() == pytest.approx([3 - 0.128 * scale, 4 + 0.096 * scale], abs=1e-12)
    assert up.metrics["loss"] == pytest.approx(mu * log(1 + exp(-0.4 / tau)), abs=1e-6)
    assert up.state["model"]["head.weight"].tolist() == [[0.0, 0.0]]
    assert same(own_after[PREVIOUS], {"body.weight": z})


def test_no_gradient_in_a_clients_first_round():
    """z_p = z_g: the term is mu log 2 and its gradient exactly zero, even after the task has moved
    z away: five steps equal FedAvg's bit for bit."""
    opt = full(0.05, epochs=5)
    trained = {}
    for name, method in {"moon": replace(MOON(mu=5.0), opt=opt), "fedavg": FedAvg(opt=opt)}.items():
        play = Play(method, net(head=(0.5, -0.25)), rows(3.0)).round()
        trained[name] = play.up[0]
    assert same(trained["moon"].state["model"], trained["fedavg"].state["model"])
    excess = trained["moon"].metrics["loss"] - trained["fedavg"].metrics["loss"]
    assert excess == pytest.approx(5 * log(2), abs=1e-5)


def test_the_second_round_differs_from_fedavg():
    """From the second round on the term acts, where the mean is not the client's own model."""
    ends = []
    for method in (FedAvg(), MOON(mu=5.0)):
        program = Program(replace(method, opt=Opt(lr=0.1, batch=4)), mlp(), 2)
        ends.append([play_all(program, tables(8, 8), rounds=t).server["model"] for t in (1, 2)])
    (fedavg_1, fedavg_2), (moon_1, moon_2) = ends
    assert same(fedavg_1, moon_1)
    assert not same(fedavg_2, moon_2)


def test_previous_is_the_model_of_the_clients_last_round():
    """After every visit the client keeps the extractor it just trained, not the received one and
    not the one of an earlier round; unsampled, it keeps what it had."""
    play = Play(moon(lr=0.1), net(head=(0.5, -0.25)), rows(3.0), rows(-2.0))
    seen = []
    for cohort in ((0, 1), (0,), (0, 1)):
        play.round(*cohort)
        trained = play.up[0].state["model"]["body.weight"]
        assert same(play.own[0][PREVIOUS], {"body.weight": trained})
        assert not torch.equal(trained, play.down[0].state["model"]["body.weight"])
        seen.append(play.own[1][PREVIOUS]["body.weight"])
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_only_the_extractor_is_kept_and_nothing_more_is_sent():
    play = Play(moon(), net(), rows(0.0)).round()
    assert {name: set(tree) for name, tree in play.own[0].items() if tree} == {
        PREVIOUS: {"body.weight"}
    }
    assert play.up[0].state.keys() == play.down[0].state.keys() == {"model"}


# ------------------------------------------------------------------ the projection head


def test_moons_projection_head():
    """Features of 5: P is 5-7-4 with ReLU between, under a head of 4 inputs, all of it the
    model's own. The contrast is of P's outputs, and the client keeps body and P."""
    method = replace(MOON(projection=(7, 4)), opt=Opt(lr=0.1, batch=4))
    program = Program(method, mlp(), 2)
    model = program.nets[0]
    shapes = {k: tuple(v.shape) for k, v in model.initial.items() if not k.startswith("body.")}
    assert shapes == {
        "projection_head.1.0.weight": (7, 5),
        "projection_head.1.0.bias": (7,),
        "projection_head.1.2.weight": (4, 7),
        "projection_head.1.2.bias": (4,),
        "head.weight": (3, 4),
        "head.bias": (3,),
    }
    assert model.path_to(model.logits) == ["body", "projection_head", "head"]
    assert model.feature == model.representation == "projection_head"
    assert program.shared(0) == set(model.keys)
    played = play_all(program, tables(8, 8), rounds=2)
    kept = {k for k in model.keys if not k.startswith("head.")}
    assert played.clients[0][PREVIOUS].keys() == kept
    moved = played.server["model"]
    assert all(not torch.equal(moved[k], model.initial[k]) for k in kept)


@pytest.mark.parametrize("method", ["dualfed", "fedcr", "fedetf", "fedrod", "pfedhn", "spherefed"])
def test_a_projection_head_is_refused_where_the_method_has_made_the_head(method):
    with pytest.raises(BadInput, match=f"projection_head and {method} cannot be combined"):
        Program(parse_method(f"{method} + projection_head(widths=[6])"), mlp(), 2)


def test_a_projection_head_under_any_method():
    """It is decayed, shared and kept as other layers are: FedPer's head alone is personal."""
    method = parse_method("fedper + projection_head(widths=[6])")
    program = Program(method, mlp(), 2)
    assert program.shared(0) == {k for k in program.nets[0].keys if not k.startswith("head.")}
    assert program.nets[0].owner["projection_head"] == "model"
    with pytest.raises(BadInput, match="widths are"):
        parse_method("fedavg + projection_head(widths=[])")
