"""FedGen: the clients' term and the server's ensemble by hand, who sees what, and FedAvg inside."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
import torch
from game import Game, cloud, rows
from torch import nn

from fedloom.core.net import Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.tree import clone, nbytes
from fedloom.errors import BadInput
from fedloom.methods import parse_method
from fedloom.methods.ditto import Ditto
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedgen import FedGen
from helpers import finite, mlp, same

CLOUDS = [cloud(0, 14, (0, 1)), cloud(1, 9, (1,)), cloud(2, 1, (0,)), cloud(3, 11, (2, 1))]
OPT = Opt(lr=0.1, epochs=2, batch=4)
K = 3


def fedgen(opt: Opt = OPT, **settings):
    small = {"noise": 2, "hidden": 4, "steps": 3, "batch": 8, "server_batch": 16}
    return FedAvg(opt=opt) + FedGen(**{**small, **settings})


# ------------------------------------------------------------------ the client's side


def table_game(counts, opt: Opt, **settings) -> Game:
    """A generator that makes 2 e_y of label y whatever the noise, a net whose features are x and
    whose head is the identity, one client of a single row x = 0 of class 0."""
    body, head = nn.Linear(K, K, bias=False), nn.Linear(K, K, bias=False)
    nn.init.eye_(body.weight), nn.init.eye_(head.weight)
    data = rows([[0.0] * K], [0], K)
    net = Net((K,), body=body, head=head)
    game = Game(fedgen(opt, hidden=K, **settings), net, data)
    game.server["fedgen"] = {
        "below.weight": torch.cat([2 * torch.eye(K), torch.zeros(K, 2)], dim=1),
        "below.bias": torch.zeros(K),
        "above.weight": torch.eye(K),
        "above.bias": torch.zeros(K),
        "counts": torch.tensor(counts),
    }
    return game


STILL = Opt(lr=0.0, epochs=1, batch=4)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_generated_cross_entropy_by_hand(alpha):
    """The row: log 3. Generated 2 e_y under the identity head: log(e^2 + 2) - 2, for any y."""
    game = table_game([1.0, 1.0, 1.0], STILL, alpha=alpha).round()
    expected = log(3) + alpha * (log(exp(2) + 2) - 2)
    assert game.up[0].metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_labels_follow_the_federations_counts():
    """Only class 2 is held anywhere: one step at lr 1, from generated z = 2 e_2 alone (the row's
    features are zero), changes the head by -z' (p - e_2): in column 2 only, and there by
    -2 (p - e_2) with p = (1, 1, e^2)/(2 + e^2). The body gets nothing from it."""
    game = table_game([0.0, 0.0, 5.0], replace(STILL, lr=1.0)).round()
    model = game.up[0].state["model"]
    p = torch.tensor([1.0, 1.0, exp(2)]) / (2 + exp(2))
    expected = torch.eye(K)
    expected[:, 2] -= 2 * (p - torch.eye(K)[2])
    assert torch.allclose(model["head.weight"], expected, atol=1e-6)
    assert torch.equal(model["body.weight"], torch.eye(K))


def test_beta_pulls_the_prediction_to_the_heads_on_generated_features():
    """The row's p is uniform, the target q = softmax(2 e_0): KL(q || p) = log 3 - H(q). The other
    direction, KL(p || q), is log(e^2 + 2) - 2/3 - log 3."""
    q = torch.tensor([exp(2), 1.0, 1.0]) / (2 + exp(2))
    expected = log(3) + 5 * (log(3) + float((q * q.log()).sum()))
    game = table_game([1.0, 1.0, 1.0], STILL, alpha=0.0, beta=5.0).round()
    assert game.up[0].metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_betas_target_is_not_trained():
    """The row is x = 0, so neither its cross-entropy nor its prediction in KL(q || p) has a
    gradient for any weight; through q the head's would be that of z = 2 e_0."""
    game = table_game([1.0, 1.0, 1.0], replace(STILL, lr=1.0), alpha=0.0, beta=5.0).round()
    assert torch.equal(game.up[0].state["model"]["head.weight"], torch.eye(K))


def test_decay_is_by_round():
    game = table_game([1.0, 1.0, 1.0], STILL, decay=0.5, steps=0).rounds(2)
    expected = log(3) + 0.5 * (log(exp(2) + 2) - 2)
    assert game.up[0].metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_round_1_is_fedavgs_and_round_2_is_not():
    """Before the generator has learned anything it teaches nothing."""
    gen, avg = (Game(m, mlp(norm=True), *CLOUDS) for m in (fedgen(), FedAvg(opt=OPT)))
    assert same(gen.round().server["model"], avg.round().server["model"])
    assert not same(gen.round().server["model"], avg.round().server["model"])


def test_alpha_0_is_fedavg_bit_for_bit():
    gen, avg = (
        Game(m, mlp(norm=True), *CLOUDS).round().round(0, 2).round(1, 3)
        for m in (fedgen(alpha=0.0), FedAvg(opt=OPT))
    )
    assert same(gen.server["model"], avg.server["model"])
    assert FedGen().alpha > 0


def test_dittos_second_model_draws_for_itself():
    """Its global side is FedAvg + FedGen's, bit for bit, though it is trained after the personal
    one."""
    term = fedgen().terms[0]
    a, b = (Game(m + term, mlp(), *CLOUDS).rounds(3) for m in (Ditto(opt=OPT), FedAvg(opt=OPT)))
    assert same(a.server["model"], b.server["model"])


# ------------------------------------------------------------------ the server's side


def test_heads_are_weighted_by_their_counts_of_the_label():
    """Two heads, logits (4, 0) and (0, 4); of class 0 they hold 3 and 1, of class 1 none and 2.
    y = 0: 3/4 and 1/4 give logits (3, 1), loss log(1 + e^-2); alike they would give log 2, by all
    counts 3 : 3 as well. y = 1: the second head alone, log(1 + e^-4)."""
    logits = torch.tensor([[[4.0, 0.0]] * 2, [[0.0, 4.0]] * 2])
    y, counts = torch.tensor([0, 1]), torch.tensor([[3.0, 0.0], [1.0, 2.0]])
    loss = FedGen()._ensemble_loss(logits, y, counts)
    assert float(loss) == pytest.approx((log(1 + exp(-2)) + log(1 + exp(-4))) / 2, abs=1e-6)
    loss = FedGen(ensemble="losses")._ensemble_loss(logits, y, counts)
    first = 0.75 * log(1 + exp(-4)) + 0.25 * log(1 + exp(4))
    assert float(loss) == pytest.approx((first + log(1 + exp(-4))) / 2, abs=1e-6)


def test_a_server_step_by_hand():
    """Client 0 holds class 0 alone, client 1 the two others: a label's logits are those of the one
    head that knows it. Labels come as often as they are held, 14 : 5 : 4. A first step of Adam
    is lr g / (|g| + 1e-8). The diversity is that of all pairs, a label's noise being apart by the
    mean square and its features by the mean absolute difference."""
    lr, eta, n = 0.01, 2.0, 16
    clients = cloud(0, 14, (0,)), cloud(1, 9, (1, 2))
    game = Game(fedgen(steps=1, lr=lr, eta=eta, server_batch=n), mlp(), *clients)
    start = {k: v.clone().requires_grad_() for k, v in game.server["fedgen"].items()}
    plan = game.program.schedule(1)[0]
    game.round()

    gen = plan.gen(-1, "fedgen")
    y = torch.multinomial(torch.tensor([14.0, 5.0, 4.0]), n, True, generator=gen)
    eps = torch.randn(n, 2, generator=gen)
    below = torch.cat([torch.eye(K)[y], eps], 1) @ start["below.weight"].T + start["below.bias"]
    z = below.clamp_min(0) @ start["above.weight"].T + start["above.bias"]
    first, second = (
        z @ up.state["model"]["head.weight"].T + up.state["model"]["head.bias"]
        for up in game.up.values()
    )
    chosen = torch.where((y == 0)[:, None], first, second).log_softmax(1)[torch.arange(n), y]
    apart = (eps[:, None] - eps).pow(2).mean(2) * (z[:, None] - z).abs().mean(2)
    loss = -chosen.mean() + eta * torch.exp(-apart.mean())
    trained = {k: v for k, v in start.items() if k != "counts"}
    for (k, v), g in zip(trained.items(), torch.autograd.grad(loss, trained.values()), strict=True):
        expected = v.detach() - lr * g / (g.abs() + 1e-8)
        assert torch.allclose(game.server["fedgen"][k], expected, atol=1e-6), k


def test_the_generator_learns_what_the_heads_know():
    """From chance to features that the clients' heads tell apart: without eta the loss on fresh
    noise falls below a tenth."""
    game = Game(fedgen(steps=150, lr=0.03, eta=0.0, hidden=16), mlp(), *CLOUDS).round()
    trained, net, term = game.server["fedgen"], game.program.nets[0], game.program.method.terms[0]
    gen = torch.Generator().manual_seed(5)
    y = torch.multinomial(trained["counts"], 200, replacement=True, generator=gen)
    z, _ = term._generate(net, trained, y, gen)
    heads = [up.state["model"] for up in game.up.values()]
    counts = torch.stack([up.state["fedgen"]["counts"] for up in game.up.values()])
    after = torch.stack([net.stage(head, "head", z) for head in heads])
    start = {**net.tools["fedgen"].state_dict(), "counts": trained["counts"]}
    z_0, _ = term._generate(net, start, y, gen)
    before = torch.stack([net.stage(head, "head", z_0) for head in heads])
    assert float(term._ensemble_loss(after, y, counts)) < 0.1
    assert float(term._ensemble_loss(before, y, counts)) > 0.1


def test_eta_keeps_generated_features_apart():
    """For one label, the spread over noise after training with and without it."""
    spreads = []
    for eta in (0.0, 10.0):
        game = Game(fedgen(steps=80, lr=0.03, eta=eta), mlp(), *CLOUDS).round()
        net, term = game.program.nets[0], game.program.method.terms[0]
        y = torch.ones(100, dtype=torch.long)
        z, _ = term._generate(net, game.server["fedgen"], y, torch.Generator().manual_seed(1))
        spreads.append(float(z.std(0).mean()))
    assert spreads[1] > 2 * spreads[0]


def test_adam_begins_anew_in_every_round():
    """So the only step of a round moves every weight that has a gradient by lr, in round 3 as
    well; with the moments of the rounds before, hardly one would move so far."""
    game = Game(fedgen(steps=1, lr=0.25), mlp(), *CLOUDS).rounds(2)
    before = game.server["fedgen"]
    after = game.round().server["fedgen"]
    moves = torch.cat([(after[k] - before[k]).flatten() for k in before if k != "counts"]).abs()
    moved = moves > 0
    assert moved.sum() > 20
    assert torch.allclose(moves[moved], torch.tensor(0.25), rtol=1e-3)


def test_the_old_state_is_left_alone():
    game = Game(fedgen(), mlp(), *CLOUDS)
    before, copy = game.server["fedgen"], clone(game.server["fedgen"])
    game.round()
    assert same(before, copy)
    assert not torch.equal(game.server["fedgen"]["below.weight"], copy["below.weight"])
    assert not any(v.requires_grad for v in game.server["fedgen"].values())
    assert game.server["fedgen"]["counts"].tolist() == [8.0, 21.0, 6.0]


# ------------------------------------------------------------------ what travels


def test_the_generator_is_counted_on_the_way_down():
    """4 (K + noise) + 4 below, 5 * 4 + 5 above, K counts, beside FedAvg's model; on the way up
    K counts. No feature and no label of a client."""
    gen, avg = (Game(m, mlp(), *CLOUDS).round() for m in (fedgen(), FedAvg(opt=OPT)))
    down = nbytes(gen.down[0].state) - nbytes(avg.down[0].state)
    up = nbytes(gen.up[0].state) - nbytes(avg.up[0].state)
    assert down == 4 * (4 * (K + 2) + 4 + 5 * 4 + 5 + K)
    assert up == 4 * K
    assert set(gen.up[0].state["fedgen"]) == {"counts"}


def test_features_may_be_maps():
    head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 3 * 3, K))
    net = Net((1, 5, 5), body=nn.Conv2d(1, 2, 3), head=head)
    game = Game(fedgen(), net, *CLOUDS)
    extended = game.program.nets[0]
    y = torch.tensor([0, 1])
    z, _ = game.program.method.terms[0]._generate(
        extended, game.server["fedgen"], y, torch.Generator().manual_seed(0)
    )
    assert z.shape == (2, 2, 3, 3)
    assert extended.stage(extended.tree(), "head", z).shape == (2, K)


SMALL = "fedgen(steps=3, server_batch=8, hidden=4)"


@pytest.mark.parametrize(
    "expression",
    [
        f"fedavg + {SMALL} + fedbr",
        f"fedavg + {SMALL} + dbe",
        f"fedavg + dbe + {SMALL}",
        f"scaffold + {SMALL}",
    ],
)
def test_it_goes_with_other_terms(expression):
    game = Game(replace(parse_method(expression), opt=OPT), mlp(), *CLOUDS)
    for plan in game.program.schedule(2):
        game._play(plan, ())
    assert finite(game.server)


def test_a_head_that_cannot_learn_is_refused():
    with pytest.raises(BadInput, match="fedgen and spherefed cannot be combined"):
        Game(parse_method("spherefed + fedgen"), mlp(), *CLOUDS)


@pytest.mark.parametrize("method", ["fedper", "local", "fedbabu", "fedcr", "fedproto"])
def test_a_personal_head_is_refused(method):
    with pytest.raises(BadInput, match="fedgen needs 'head"):
        Game(parse_method(f"{method} + fedgen"), mlp(), *CLOUDS)


@pytest.mark.parametrize(
    ("eps", "mean", "negative"), [("normal", 0.0, True), ("uniform", 0.5, False)]
)
def test_what_eps_is_drawn_from(eps, mean, negative):
    """N(0, 1) as in the paper; [0, 1) as published. 2,000 draws of 4."""
    term = FedGen(noise=4, eps=eps)
    net = Program(FedAvg() + term, mlp(), 2).nets[0]
    slice_ = {**net.tools["fedgen"].state_dict(), "counts": torch.ones(3)}
    y = torch.zeros(2000, dtype=torch.int64)
    drawn = term._generate(net, slice_, y, generator("eps"))[1]
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.05)
    assert bool((drawn < 0).any()) == negative


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadInput, match="1 or more"):
        FedGen(batch=0)
    with pytest.raises(BadInput, match="logits or losses"):
        FedGen(ensemble="votes")
