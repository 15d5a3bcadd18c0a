"""FedBR by hand: the losses, the game on theta, pseudo-images, and what travels.

`bare_step` is Algorithm 1 once more in plain PyTorch, with none of fedloom's code; the term must
agree with it for every switch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt, Phase
from fedloom.core.program import Program
from fedloom.core.rng import generator
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.term import Term
from fedloom.core.tree import Tree, nbytes
from fedloom.errors import BadInput
from fedloom.method_tools.pseudo_data import mix_images, pool_images, proxy_images, sample_means
from fedloom.methods import parse_method
from fedloom.methods.dbe import DBE
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedbr import FedBR
from fedloom.models import build_model
from fedloom.ops.contrastive import pair_contrast
from helpers import Played, Table, Tables, digits, finite, mlp, play, run, same, tables

ROWS, WIDTH, CLASSES = 4, 4, 3


def train_plans(prog: Program, rounds: int):
    return [p for p in prog.schedule(rounds) if p.kind == "train"]


def softplus(v: float) -> float:
    return log1p(exp(v))


# ------------------------------------------------------------------ the contrast, eq. (5)-(7)


def test_contrast_by_hand() -> None:
    """cos(z, p) = 1 and cos(z, n) = 1/sqrt(2), whatever the lengths; f1 = e^s, f2 = e^(s'/sqrt 2):
    -log f1/(f1 + f2) = log(1 + e^(s'/sqrt 2 - s))."""
    z, p, n = (torch.tensor([v]) for v in ([1.0, 0.0], [3.0, 0.0], [2.0, 2.0]))
    loss = pair_contrast(z, p, n, 0.5, 2.0).item()
    assert loss == pytest.approx(softplus(2 / sqrt(2) - 0.5), rel=1e-6)
    assert pair_contrast(z, p, n, 0.5).item() == pytest.approx(
        softplus(0.5 / sqrt(2) - 0.5), rel=1e-6
    )


@pytest.mark.parametrize(
    ("options", "scales"),
    [
        ({"tau1": 2.0, "tau2": 4.0}, (0.5, 0.25)),
        ({"tau1": 2.0, "tau2": 4.0, "multiply": True}, (2.0, 4.0)),
        ({"tau1": 2.0, "tau2": 0.0, "multiply": True}, (2.0, 0.0)),  # f2 = 1: no negative pull
    ],
)
def test_loss_of_the_first_step_by_hand(options, scales) -> None:
    """phi = identity, a head of zeros, one image (1, 1) and two pseudo-images (1, 0), no step.

    CE(x, y) = CE(x_p, 1/C) = ln 2; cos(phi(x_p), phi_g(x_p)) = 1, cos(phi(x_p), phi(x)) =
    1/sqrt(2); the contrast is over the one pair. With lam = 3 and mu = 5 the loss is
    (1 + 3) ln 2 + 5 log(1 + e^(s2/sqrt 2 - s1)), s = 1/tau, or tau where it multiplies.
    """
    body, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    with torch.no_grad():
        body.weight.copy_(torch.eye(2))
        head.weight.zero_()
        head.bias.zero_()
    term = FedBR(lam=3.0, mu=5.0, projection=None, images=2, **options)
    method = replace(FedAvg() + term, opt=Opt(lr=0.0))
    prog = Program(method, Net((2,), body=body, head=head), 2)
    one, other = (
        ClientData(Table(torch.tensor([v]), torch.zeros(1, dtype=torch.int64)), None, None, 2)
        for v in ([1.0, 1.0], [1.0, 0.0])
    )
    start = play(prog, Tables([other, other]), prog.schedule(1)[:1])  # D_p from rows (1, 0)
    assert start.server["fedbr"]["x"].tolist() == [[1.0, 0.0]] * 2
    played = play(prog, Tables([one, one]), train_plans(prog, 1), start)
    s1, s2 = scales
    expected = 4 * log(2) + 5 * softplus(s2 / sqrt(2) - s1)
    assert played.answers[0].up.metrics["loss"] == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------ Algorithm 1 in plain PyTorch


def project(w: Tree, z: Tensor) -> Tensor:
    """P_theta; without one, z itself."""
    if "fedbr.0.weight" not in w:
        return z
    for i in (0, 2):
        z = torch.relu(z @ w[f"fedbr.{i}.weight"].T + w[f"fedbr.{i}.bias"])
    return z @ w["fedbr.4.weight"].T + w["fedbr.4.bias"]


def features(w: Tree, x: Tensor) -> Tensor:
    return torch.relu(x @ w["body.0.weight"].T + w["body.0.bias"])


def logits(w: Tree, z: Tensor) -> Tensor:
    return z @ w["head.weight"].T + w["head.bias"]


def contrast(w: Tree, z_p: Tensor, z_g: Tensor, z: Tensor, term: FedBR) -> Tensor:
    n = min(len(z_p), len(z))
    a, b, c = (project(w, v[:n]) for v in (z_p, z_g, z))
    by = (lambda v, tau: v * tau) if term.multiply else (lambda v, tau: v / tau)
    f1 = by(F.cosine_similarity(a, b), term.tau1).exp()
    f2 = by(F.cosine_similarity(a, c), term.tau2).exp()
    return -(f1 / (f1 + f2)).log().mean()


def bare_step(w: Tree, received: Tree, batch: tuple, pseudo: tuple, lr: float, term: FedBR) -> Tree:
    """One max step, one min step."""
    (x, y), (x_p, y_p) = batch, pseudo
    theta = [k for k in w if k.startswith("fedbr.")]
    w = {k: v.detach().clone().requires_grad_() for k, v in w.items()}
    z_g = features(received, x_p).detach()
    if term.max_step and theta and term.mu:  # line 8
        adversary = contrast(w, features(w, x_p).detach(), z_g, features(w, x).detach(), term)
        up = torch.autograd.grad(adversary, [w[k] for k in theta])
        w |= {k: (w[k] + lr * g).detach() for k, g in zip(theta, up, strict=True)}
    z_p, z = features(w, x_p), features(w, x)
    soft = -(y_p * logits(w, z_p).log_softmax(1)).sum(1).mean()
    loss = F.cross_entropy(logits(w, z), y) + term.lam * soft  # line 10
    loss = loss + term.mu * contrast(w, z_p, z_g, z, term)
    rest = [k for k in w if k not in theta]
    down = torch.autograd.grad(loss, [w[k] for k in rest])
    w |= {k: w[k] - lr * g for k, g in zip(rest, down, strict=True)}
    return {k: v.detach() for k, v in w.items()}


LEARN = Opt(lr=0.3, steps=4, batch=ROWS, replacement=True)


def alone(term: FedBR, opt: Opt = LEARN) -> tuple[Program, Tables]:
    """One client of ten rows, so that the server's model is the client's."""
    return Program(replace(FedAvg() + term, opt=opt), mlp(WIDTH, 5, CLASSES), 1, seed=4), tables(10)


def uniform(n: int) -> Tensor:
    return torch.full((n, CLASSES), 1 / CLASSES)


@pytest.mark.parametrize(
    "term",
    [
        FedBR(),
        FedBR(lam=0.1, mu=2.0, tau1=0.5, tau2=1.5),
        FedBR(multiply=True, tau1=0.5, tau2=1.5, mu=2.0),
        FedBR(multiply=True, tau2=0.0),
        FedBR(max_step=False, mu=3.0),
        FedBR(projection="published", mu=3.0),
        FedBR(projection=None, mu=3.0),
        FedBR(lam=0.0, mu=3.0),
        FedBR(mu=0.0, lam=2.0),
        FedBR(images=6, mu=3.0),  # more pseudo-images than rows in a batch
        FedBR(images=2, mu=3.0),  # fewer
    ],
    ids=str,
)
def test_a_round_is_algorithm_1(term: FedBR) -> None:
    """Four local steps with batches drawn with replacement; all of phi, omega and theta."""
    prog, data = alone(term)
    played = run(prog, data, 1)
    train, w = data.client(0).train, prog.nets[0].tree()
    received, x_p = dict(w), played.answers[-1].down.state["fedbr"]["x"]
    assert len(x_p) == (term.images or ROWS)
    order = train_plans(prog, 1)[0].gen(0, ("batches", "model", 1))
    epoch = list(torch.randint(10, (3, ROWS), generator=order))  # ceil(10 / 4) batches an epoch
    batches = [*epoch, torch.randint(10, (3, ROWS), generator=order)[0]]
    for rows in batches:
        batch = (train.rows[rows], train.y[rows])
        w = bare_step(w, received, batch, (x_p, uniform(len(x_p))), LEARN.lr, term)
    for k, v in played.server[METHOD].items():
        assert torch.allclose(v, w[k], atol=2e-6), k
    moved = any(not torch.equal(w[k], received[k]) for k in w if k.startswith("fedbr"))
    assert moved == (term.max_step and term.mu > 0 and term.projection is not None)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_round_with_mixtures_is_algorithm_1(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step mixes anew (eq. 4), and phi_g sees the same mixture as phi: a phi_g of the first
    step's mixture (the published code) ends elsewhere."""
    proxy = torch.randn(ROWS, WIDTH, generator=generator("proxy"))
    monkeypatch.setattr("fedloom.methods.fedbr.proxy_images", lambda *a: proxy)
    term = FedBR(pseudo="mixture", mix=k, mu=3.0)
    prog, data = alone(term, replace(LEARN, steps=3))
    played = run(prog, data, 1)
    assert [p.kind for p in prog.schedule(1)] == ["train"], "a proxy set asks no client"
    train, w = data.client(0).train, prog.nets[0].tree()
    received, plan = dict(w), train_plans(prog, 1)[0]
    mixing = plan.gen(0, "fedbr")
    for rows in torch.randint(10, (3, ROWS), generator=plan.gen(0, ("batches", "model", 1))):
        x, y = train.rows[rows], train.y[rows]
        x_p, y_p = proxy, uniform(ROWS)
        if k:
            chosen = torch.randint(ROWS, (ROWS, k), generator=mixing)
            x_p = (x_p + x[chosen].sum(1)) / (k + 1)
            y_p = (y_p + F.one_hot(y, CLASSES)[chosen].sum(1)) / (k + 1)
        w = bare_step(w, received, (x, y), (x_p, y_p), LEARN.lr, term)
    for key, v in played.server[METHOD].items():
        assert torch.allclose(v, w[key], atol=2e-6), key


def test_phi_g_sees_the_mixture_of_its_own_step() -> None:
    """Nothing moves (lr 0), so phi = phi_g and cos = 1 for one input: with tau2 = 0 multiplied the
    contrast is log(1 + e^-1) at every step; on two mixtures the cosine would be below 1."""
    term = FedBR(pseudo="mixture", proxy="digits", lam=0.0, mu=1.0, projection=None)
    term = replace(term, multiply=True, tau1=1.0, tau2=0.0)
    net = build_model("mlp(hidden=[16])", (1, 8, 8), 10, seed=0)
    data = digits(((0, 1, 2), 20))
    losses = []
    for method in (FedAvg(), FedAvg() + term):
        prog = Program(replace(method, opt=Opt(lr=0.0, batch=5, epochs=2)), net, 1)
        losses.append(run(prog, data, 1).answers[0].up.metrics["loss"])
    assert losses[1] - losses[0] == pytest.approx(softplus(-1), abs=1e-5)


# ------------------------------------------------------------------ the max step


@dataclass(frozen=True, kw_only=True)
class HeadBias(Method):
    """Trains one tensor that no feature depends on, so that phi stands still."""

    name: ClassVar[str] = "head_bias"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(train="head.bias"),)


def test_the_max_step_touches_only_theta() -> None:
    """With a phi that is not trained, two rounds of component 2 move theta and the head's bias;
    the bias, which no feature depends on, moves bit for bit as without the term."""
    net, data, opt = mlp(WIDTH, 5, CLASSES), tables(8), Opt(lr=0.05, batch=4)
    on, off = (
        Program(replace(HeadBias() + FedBR(lam=0.0, mu=mu), opt=opt), net, 1) for mu in (1.0, 0.0)
    )
    with_, without = (run(prog, data, 2).server[METHOD] for prog in (on, off))
    initial = on.nets[0].initial
    theta = {k for k in initial if k.startswith("fedbr.")}
    assert {k for k, v in with_.items() if not v.equal(initial[k])} == {"head.bias", *theta}
    assert {k for k, v in without.items() if not v.equal(initial[k])} == {"head.bias"}
    assert torch.equal(with_["head.bias"], without["head.bias"])


def test_one_max_step_climbs_by_lr_times_the_squared_gradient() -> None:
    """To first order: L(theta + lr g) - L(theta) = lr |g|^2, with the pairing of that very step.
    A descent has the other sign."""
    term = FedBR(lam=0.0, mu=1.0, tau1=0.2, tau2=0.2)
    opt = Opt(lr=1e-3, batch=ROWS, steps=1, replacement=True)
    prog = Program(replace(HeadBias() + term, opt=opt), mlp(WIDTH, 5, CLASSES), 1)
    data = tables(10)
    played = run(prog, data, 1)
    x_p = played.answers[-1].down.state["fedbr"]["x"]
    order = train_plans(prog, 1)[0].gen(0, ("batches", "model", 1))
    rows = torch.randint(10, (3, ROWS), generator=order)[0]
    old = {k: v.requires_grad_() for k, v in prog.nets[0].tree().items()}
    theta = [k for k in old if k.startswith("fedbr.")]
    z_p, z = features(old, x_p).detach(), features(old, data.client(0).train.rows[rows]).detach()
    before = contrast(old, z_p, z_p, z, term)
    g = torch.autograd.grad(before, [old[k] for k in theta])
    after = contrast(played.server[METHOD], z_p, z_p, z, term)
    climbed = (after - before).item()
    assert climbed == pytest.approx(opt.lr * sum((v**2).sum().item() for v in g), rel=0.1)
    assert climbed > 1e-6


@pytest.mark.parametrize(("own", "momentum"), [(None, 0.9), (0.0, 0.0), (0.5, 0.5)])
def test_thetas_momentum_is_the_runs_unless_it_has_its_own(own, momentum) -> None:
    """One row (1, 1, ...) and one pseudo-image (1, 0, ...), phi still, three steps:
    v <- momentum v + grad L_con, theta <- theta + lr v."""
    term = FedBR(lam=0.0, mu=1.0, images=1, tau1=0.2, tau2=0.2, theta_momentum=own)
    opt = Opt(lr=0.05, batch=1, epochs=3, momentum=0.9)
    prog = Program(replace(HeadBias() + term, opt=opt), mlp(WIDTH, 5, CLASSES), 1)
    x, x_p = torch.ones(1, WIDTH), torch.eye(1, WIDTH)
    one, other = (
        Tables([ClientData(Table(rows, torch.zeros(1, dtype=torch.int64)), None, None, CLASSES)])
        for rows in (x, x_p)
    )
    start = play(prog, other, prog.schedule(1)[:1])
    server = play(prog, one, train_plans(prog, 1), start).server[METHOD]
    w = prog.nets[0].tree()
    theta = [k for k in w if k.startswith("fedbr.")]
    z_p, z = features(w, x_p), features(w, x)
    velocity = {k: torch.zeros_like(w[k]) for k in theta}
    for _ in range(3):
        for k in theta:
            w[k] = w[k].detach().requires_grad_()
        loss = contrast(w, z_p, z_p, z, term)
        for k, g in zip(theta, torch.autograd.grad(loss, [w[k] for k in theta]), strict=True):
            velocity[k] = momentum * velocity[k] + g
            w[k] = w[k].detach() + opt.lr * velocity[k]
    for k in theta:
        torch.testing.assert_close(server[k], w[k], rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------ what reduces to what

OPT = Opt(lr=0.1, epochs=2, batch=4, momentum=0.5, weight_decay=1e-2)


def trained(method: Method, norm: bool = True, opt: Opt = OPT, **how: object) -> Played:
    prog = Program(replace(method, opt=opt), mlp(norm=norm), 4, seed=5)
    return run(prog, tables(9, 5, 1, 6), 3, **how)


def without_theta(played: Played) -> Tree:
    return {k: v for k, v in played.server[METHOD].items() if not k.startswith("fedbr.")}


def test_lam_and_mu_0_is_fedavg() -> None:
    plain = trained(FedAvg()).server[METHOD]
    assert same(without_theta(trained(FedAvg() + FedBR(lam=0.0, mu=0.0))), plain)
    once = FedBR(lam=0.0, mu=0.0, refresh=False)
    assert same(
        without_theta(trained(FedAvg() + once, participation=0.5)),
        trained(FedAvg(), participation=0.5).server[METHOD],
    )


def test_every_switch_trains_another_model() -> None:
    switches = [
        {"lam": 0.0, "mu": 0.0},
        {"mu": 0.0},
        {"lam": 0.0},
        {},
        {"max_step": False},
        {"projection": None},
        {"projection": "published"},
        {"multiply": True},
        {"refresh": False},
        {"balanced": True},
    ]
    models = [without_theta(trained(FedAvg() + FedBR(**s), norm=False)) for s in switches]
    for i, a in enumerate(models):
        for j in range(i):
            assert not same(a, models[j]), (switches[i], switches[j])


def test_theta_moves_only_by_the_max_step() -> None:
    """Component 1 alone, or no max step: theta stays at its start, bit for bit, through training
    and averaging; the min step has no gradient into it."""
    initial = Program(FedAvg() + FedBR(), mlp(norm=True), 4, seed=5).nets[0].tree("fedbr.*")
    for options, moves in (({"mu": 0.0}, False), ({"max_step": False}, False), ({}, True)):
        server = trained(FedAvg() + FedBR(**options)).server[METHOD]
        for k, v in initial.items():
            assert torch.equal(server[k], v) != moves, (options, k)


def test_statistics_of_batch_norm_are_those_of_real_images() -> None:
    """With lr 0 nothing else moves: the running statistics are FedAvg's, bit for bit."""
    still = replace(OPT, lr=0.0)
    plain = trained(FedAvg(), opt=still).server[METHOD]
    debiased = trained(FedAvg() + FedBR(), opt=still)
    assert same(without_theta(debiased), plain)
    assert any(k.endswith("running_mean") and v.any() for k, v in plain.items())


# ------------------------------------------------------------------ theta


@pytest.mark.parametrize(
    ("projection", "sizes"),
    [
        ("paper", [(256, 16), (256, 256), (128, 256)]),
        ("published", [(32, 16), (32, 32), (16, 32)]),
        (None, []),
    ],
)
def test_projection_sizes(projection, sizes) -> None:
    """Features of d = 16: the paper's 256 and 128, the code's 2d and d."""
    net = build_model("mlp(hidden=[16])", (1, 8, 8), 10, seed=0)
    prog = Program(FedAvg() + FedBR(projection=projection), net, 1)
    theta = prog.nets[0].tree("fedbr.*")
    assert [tuple(v.shape) for k, v in theta.items() if k.endswith("weight")] == sizes


def test_theta_is_averaged_with_the_model_also_where_the_head_is_personal() -> None:
    """FedAvg's weights, n_i / n: 10 and 5 rows. theta goes up and down in the slice `model`, and
    nothing of it is kept."""
    for base in ("fedavg", "fedper"):
        prog = Program(replace(parse_method(f"{base} + fedbr"), opt=OPT), mlp(), 2)
        played = run(prog, tables(10, 5), 1)
        a, b = (x.up.state[METHOD] for x in played.answers if x.plan.kind == "train")
        theta = [k for k in prog.nets[0].keys if k.startswith("fedbr.")]
        assert len(theta) == 6
        for k in theta:
            assert torch.allclose(played.server[METHOD][k], (10 * a[k] + 5 * b[k]) / 15, atol=1e-7)
            assert not torch.equal(a[k], b[k])
            assert all(k not in own.get(METHOD, {}) for own in played.clients.values())
            assert all(k in x.down.state[METHOD] for x in played.answers)


# ------------------------------------------------------------------ pseudo-images


def test_rsm_is_a_mean_of_rows() -> None:
    """The draw written out; and a client of one row has that row as its only mean."""
    split = Table(torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([0, 0, 1, 1]))
    means = sample_means(split, 3, 2, torch.Generator().manual_seed(1))
    rows = torch.multinomial(
        torch.ones(4), 6, replacement=True, generator=torch.Generator().manual_seed(1)
    )
    expected = [
        [(split.rows[rows[2 * i]] + split.rows[rows[2 * i + 1]]).item() / 2] for i in range(3)
    ]
    assert means.tolist() == expected
    single = Table(torch.tensor([[3.0, 5.0]]), torch.tensor([2]))
    assert sample_means(single, 2, 10, torch.Generator()).tolist() == [[3.0, 5.0]] * 2


def test_balanced_rsm_draws_classes_alike() -> None:
    """99 rows of value 0 in class 0 and one of value 1 in class 2 (nobody in class 1): the mean of
    many draws is 1/100, or 1/2 balanced; 0.02 is more than four standard errors."""
    x = torch.zeros(100, 1)
    x[7] = 1.0
    y = torch.zeros(100, dtype=torch.int64)
    y[7] = 2
    plain, balanced = (
        sample_means(Table(x, y), 1, 20_000, generator("rsm"), balanced=b).item()
        for b in (False, True)
    )
    assert plain == pytest.approx(0.01, abs=0.005)
    assert balanced == pytest.approx(0.5, abs=0.02)


def constant_clients(*values: float, rows: int = 3) -> Tables:
    """Client i's rows all hold one value, so that a pseudo-image tells whose it is."""
    y = torch.arange(rows) % CLASSES
    return Tables(
        [ClientData(Table(torch.full((rows, WIDTH), v), y), None, None, CLASSES) for v in values]
    )


def test_pseudo_images_are_a_batch_each_of_one_client_new_each_round() -> None:
    """Four clients, two of them a round, six images: 2 each (ceil 6/4) before FL, then 3 each. Each
    image is one client's, no mixture of two, and after a round all are of that round's clients."""
    prog = Program(replace(FedAvg() + FedBR(images=6), opt=OPT), mlp(), 4)
    data = constant_clients(1.0, 2.0, 4.0, 8.0)
    state = play(prog, data, prog.schedule(1)[:1])
    assert [a.cid for a in state.answers] == [0, 1, 2, 3]
    assert all(a.up.state["fedbr"]["x"].shape == (2, WIDTH) for a in state.answers)
    assert state.server["fedbr"]["x"].shape == (6, WIDTH)
    cohorts = set()
    for plan in train_plans(prog, 4):
        state = play(prog, data, [plan], state, participation=0.5)
        cohort = [a.cid for a in state.answers]
        x = state.server["fedbr"]["x"]
        assert x.shape == (6, WIDTH)
        assert sorted(x[:, 0].tolist()) == [2.0**c for c in cohort for _ in range(3)]
        cohorts.add(tuple(cohort))
    assert len(cohorts) > 1


def test_where_clients_fail_old_images_fill_the_batch() -> None:
    """Three shares of two, two clients silent: two new images, then four of the old."""
    old = torch.arange(6.0)[:, None]
    new = [torch.tensor([[10.0], [11.0]])]
    images = pool_images(new, old, 6, generator("fill")).flatten().tolist()
    assert sorted(images[:2]) == [10.0, 11.0]
    assert images[2:] == [0.0, 1.0, 2.0, 3.0]
    prog = Program(replace(FedAvg() + FedBR(images=6), opt=OPT), mlp(), 3)
    data = constant_clients(1.0, 2.0, 4.0)
    state = play(prog, data, prog.schedule(1)[:1])
    r = Round(prog, train_plans(prog, 1)[0], state.server, [0, 1, 2])
    up, _ = client(Visit(prog, 1, data.client(1), send(r, 1), state.clients.get(1)))
    for cid, answer in ((0, None), (1, up), (2, None)):
        r.add(cid, answer)
    x = merge(r)["fedbr"]["x"][:, 0]
    assert len(x) == 6
    assert x[:2].tolist() == [2.0, 2.0]
    assert torch.equal(x[2:], state.server["fedbr"]["x"][:4, 0])


def test_sent_each_round_or_once() -> None:
    """Images of 4 numbers, 4 of them a batch, 64 bytes; 3 clients send 2 each, 32 bytes; the share
    they are asked for is an 8-byte number. Once: after its first training round a client is sent
    the model and theta and nothing else, and sends nothing else."""
    for refresh in (True, False):
        prog = Program(replace(FedAvg() + FedBR(refresh=refresh), opt=OPT), mlp(), 3)
        played = run(prog, tables(9, 5, 6), 3)
        model = nbytes({METHOD: prog.nets[0].tree()})
        images = []
        for answer in played.answers:
            down, up = nbytes(answer.down.state) - model, nbytes(answer.up.state)
            images.append(answer.down.state.get("fedbr", {}).get("x"))
            if answer.plan.kind == "special":
                assert (down, up) == (8, 32)
            elif refresh:
                assert (down, up - model) == (64 + 8, 32)
            else:
                assert (down, up - model) == (64 if answer.plan.t == 1 else 0, 0)
        if refresh:
            assert not torch.equal(images[3], images[6])
            assert not torch.equal(images[6], images[9])
        else:
            assert all(torch.equal(own["fedbr"]["x"], images[3]) for own in played.clients.values())


def test_images_that_are_kept_do_what_images_sent_every_round_would() -> None:
    prog = Program(replace(FedAvg() + FedBR(refresh=False), opt=OPT), mlp(), 3)
    data = tables(9, 5, 6)
    state = play(prog, data, prog.schedule(1)[:1])
    for plan in train_plans(prog, 3):
        never_sent = {**state.server["fedbr"], "holders": torch.zeros(3, dtype=torch.bool)}
        state = play(
            prog, data, [plan], replace(state, server=state.server | {"fedbr": never_sent})
        )
        assert all("fedbr" in a.down.state for a in state.answers)
    assert same(state.server[METHOD], run(prog, data, 3).server[METHOD])


# ------------------------------------------------------------------ mixture, eq. (4)


@pytest.mark.parametrize(
    ("k", "x", "y"),
    [
        (1, 4, [1 / 8, 1 / 8, 5 / 8, 1 / 8]),
        (2, 14 / 3, [1 / 12, 1 / 12, 3 / 4, 1 / 12]),
    ],
)
def test_mixture_by_hand(k: int, x: float, y: list[float]) -> None:
    """x_p = 2 and a batch of one image 6 of class 2, C = 4, uniform 1/4. K = 1: (2 + 6)/2 = 4 and
    (1/4 + 1)/2 = 5/8; K = 2: (2 + 12)/3 = 14/3 and (1/4 + 2)/3 = 3/4."""
    batch = (torch.tensor([[6.0]]), torch.tensor([2]))
    x_p, y_p = mix_images(
        torch.tensor([[2.0]]), torch.full((1, 4), 0.25), batch, k, generator("mix")
    )
    assert x_p.item() == pytest.approx(x)
    assert y_p.tolist()[0] == pytest.approx(y)
    assert y_p.sum().item() == pytest.approx(1)


def test_mixture_takes_the_labels_the_loss_takes() -> None:
    """Soft ones too: an image that was mixed (Mixup) carries its mixed label."""
    batch = (torch.tensor([[6.0]]), torch.tensor([[0.5, 0.5]]))
    _, y = mix_images(torch.tensor([[2.0]]), torch.full((1, 2), 0.5), batch, 1, generator("mix"))
    assert y.tolist() == [[0.5, 0.5]]
    wholly = (batch[0], torch.tensor([[0.25, 0.75]]))
    _, y = mix_images(torch.tensor([[2.0]]), torch.full((1, 2), 0.5), wholly, 1, generator("mix"))
    assert y.tolist() == [[0.375, 0.625]]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 16, 24)])
def test_a_proxy_set_is_brought_to_the_networks_input(shape: tuple[int, ...]) -> None:
    x = proxy_images("digits", shape, 5, 10, generator("proxy"))
    assert x.shape == (5, *shape)
    native = proxy_images("digits", (1, 8, 8), 5, 10, generator("proxy"))
    assert x.mean().item() == pytest.approx(native.mean().item(), abs=0.1)
    if shape[0] == 3:
        assert torch.equal(x[:, 0], x[:, 2])


def test_mixture_draws_anew_each_round_or_once_and_asks_for_no_image() -> None:
    net = build_model("mlp(hidden=[8])", (1, 8, 8), 10, seed=0)
    data = digits(((0, 1, 2), 9), ((3,), 1))
    for refresh in (True, False):
        term = FedBR(pseudo="mixture", proxy="digits", refresh=refresh)
        prog = Program(replace(FedAvg() + term, opt=OPT), net, 2)
        start = initial_server(prog)["fedbr"]["x"]
        played = run(prog, data, 2)
        assert start.shape == (4, 1, 8, 8)
        assert all("fedbr" not in a.up.state for a in played.answers)
        assert torch.equal(played.answers[0].down.state["fedbr"]["x"], start)
        assert torch.equal(played.server["fedbr"]["x"], start) != refresh
        assert ("fedbr" in played.answers[-1].down.state) == refresh
        assert finite(played.server)


# ------------------------------------------------------------------ with others


@dataclass(frozen=True)
class Sizes(Term):
    """Writes down how many rows every batch has."""

    name: ClassVar[str] = "sizes"
    seen: ClassVar[list[int]] = []

    def inputs(self, b, s) -> None:
        self.seen.append(len(b.y))


def test_local_steps_with_replacement_have_whole_batches_whatever_the_client_holds() -> None:
    Sizes.seen.clear()
    opt = Opt(lr=0.1, steps=5, batch=4, replacement=True)
    prog = Program(replace(FedAvg() + FedBR() + Sizes(), opt=opt), mlp(), 2)
    assert finite(run(prog, tables(1, 9), 2).server)
    assert Sizes.seen == [4] * 20


AWKWARD = (((0, 1), 13), ((3,), 1), ((4, 5, 6), 9), ((7, 8), 11))
ON = ["fedavg", "scaffold", "fedprox", "moon", "ditto", "fedper", "fedrep", "fedbabu", "dualfed"]


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("with_", [*(f"{m} + fedbr" for m in ON), "moon + fedbr + dbe"])
def test_fedbr_goes_on_other_methods_and_with_dbe(with_: str, norm: str) -> None:
    """Clients that lack classes, one with a single row, half of them a round."""
    net = build_model(f"mlp(hidden=[8], norm='{norm}')", (1, 8, 8), 10, seed=0)
    prog = Program(replace(parse_method(with_), opt=Opt(lr=0.05, batch=8)), net, 4)
    played = run(prog, digits(*AWKWARD, held_out=3), 2, participation=0.5)
    theta = prog.nets[0].tree("fedbr.*")
    assert finite(played.server)
    assert played.server["fedbr"]["x"].shape == (8, 1, 8, 8)
    assert any(not torch.equal(played.server[METHOD][k], v) for k, v in theta.items())
    for answer in played.answers:
        assert finite(answer.up.state)
        assert finite(answer.kept)


def test_with_dbe_features_are_compared_below_the_translation() -> None:
    """Nothing moves (lr 0). The contrast is what the term adds to the loss of a batch; a z_p of 3
    changes the cross-entropy beside it, but no cosine."""

    def loss(shift: float, *terms: Term) -> float:
        method = FedAvg() + DBE(kappa=0.0) + terms
        prog = Program(replace(method, opt=Opt(lr=0.0, batch=4)), mlp(), 1, seed=1)
        start = play(prog, tables(4), [p for p in prog.schedule(1) if p.kind == "special"])
        own = {0: {METHOD: {"prbm.vector": torch.full((5,), shift)}}}
        played = play(prog, tables(4), train_plans(prog, 1), replace(start, clients=own))
        return played.answers[0].up.metrics["loss"]

    plain, shifted = ((loss(v), loss(v, FedBR(lam=0.0, mu=1.0))) for v in (0.0, 3.0))
    assert abs(plain[0] - shifted[0]) > 1e-3
    assert shifted[1] - shifted[0] == pytest.approx(plain[1] - plain[0], abs=1e-5)
    assert plain[1] - plain[0] > 0.1


def test_what_cannot_work_is_refused() -> None:
    for tau in ({"tau1": 0.0}, {"tau2": -1.0}):
        with pytest.raises(BadInput, match="positive"):
            FedBR(**tau)
    for wrong in ({"tau2": -1.0, "multiply": True}, {"theta_momentum": 1.0}):
        with pytest.raises(BadInput, match="0 or more"):
            FedBR(**wrong)
    text = build_model("fasttext(vocabulary=20)", (7,), 4, seed=0)
    with pytest.raises(BadInput, match="token ids"):
        Program(FedAvg() + FedBR(), text, 2)
    with pytest.raises(BadInput, match="cannot be combined"):
        Program(parse_method("fedcr + fedbr"), mlp(), 2)
    with pytest.raises(BadInput, match="pseudo"):
        parse_method("fedavg + fedbr(pseudo=rms)")
    flat = Program(FedAvg() + FedBR(pseudo="mixture", proxy="digits"), mlp(), 2)
    with pytest.raises(BadInput, match="proxy data must be images"):
        initial_server(flat)
