"""DBE by hand: PRBM, mean regularisation, the initialisation round, and what travels.

Most tests use a net of two weights, features b x under a head h, in float64, so that numbers are
sums of powers of two and equality can be asked for.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import prod

import pytest
import torch
from quadratic import Squares, linear, product
from torch import Tensor

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.evaluate import global_state
from fedloom.core.message import Down
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.task import Task
from fedloom.core.tree import nbytes
from fedloom.errors import BadInput, UnknownName
from fedloom.method_tools import broadcast_once
from fedloom.methods import parse_method
from fedloom.methods.dbe import DBE, PRBM, MeanRegularization
from fedloom.methods.ditto import Ditto
from fedloom.methods.dualfed import DualFed
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedper import FedPer
from fedloom.methods.scaffold import SCAFFOLD
from fedloom.models import build_model
from fedloom.ops.noise import perturb
from helpers import Played, Table, Tables, digits, finite, mlp, play, run, same, tables

MR = "mean_regularization"


class Free(Squares):
    """No loss of its own: what moves is moved by the term under test."""

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return 0 * logits.sum()


def people(*xs: list[float], target: float = 0.0) -> Tables:
    """One client per list, a row per number."""

    def one(x: list[float]) -> ClientData:
        rows = torch.tensor(x, dtype=torch.float64)[:, None]
        return ClientData(Table(rows, torch.full_like(rows, target)), None, None, 1)

    return Tables([one(x) for x in xs])


def program(method: Method, net: Net, clients: int = 1, task: Task | None = None) -> Program:
    net.input_dtype = torch.float64
    return Program(method, net, clients, task=task or Free())


def whole(lr: float = 0.125, epochs: int = 1, **more: object) -> Opt:
    return Opt(lr=lr, epochs=epochs, batch=64, **more)


def with_mean(prog: Program, *mean: float) -> Played:
    """A server after an initialisation round that found this mean."""
    z_g = {"mean": torch.tensor(mean, dtype=torch.float64)}
    start = Round(prog, prog.schedule(1)[0], {})
    return Played(initial_server(prog) | {MR: broadcast_once.start(start, z_g)}, {})


def train_plans(prog: Program, rounds: int):
    return [p for p in prog.schedule(rounds) if p.kind == "train"]


def init_plan(prog: Program):
    return next(p for p in prog.schedule(1) if p.kind == "special")


def body(played: Played) -> list[float]:
    return played.server[METHOD]["body.weight"].flatten().tolist()


# ------------------------------------------------------------------ MR, eq. (8) and (9)


def test_gradient_flows_through_the_batchs_share_and_m_runs_on_and_is_reset() -> None:
    """Feature b (x = 1), no other loss, kappa 1, mu 1/2, z_g = 0, lr 1/8, two steps a round.

    d/db kappa m^2 with m = mu b + (1 - mu) m_old is 2 kappa mu m = m.
    Round 1: m = 2 from b = 4, so b = 4 - 2/8 = 3.75; m = 3.75/2 + 2/2 = 2.875, b = 3.390625.
    Round 2: m starts at 0: m = 1.6953125, b = 3.1787109375; m = 2.43701171875,
    b = 2.87408447265625. A gradient without the share mu, through m_old, or an m that is kept
    from round to round or lost from step to step gives other numbers.
    """
    method = replace(FedAvg() + MeanRegularization(kappa=1.0, mu=0.5), opt=whole(epochs=2))
    prog = program(method, product(4.0, 1.0))
    first, second = train_plans(prog, 2)
    one = play(prog, people([1.0]), [first], with_mean(prog, 0.0))
    assert body(one) == [3.390625]
    assert body(play(prog, people([1.0]), [second], one)) == [2.87408447265625]


@pytest.mark.parametrize(("half", "moved"), [(False, [0.0, -2.0]), (True, [1.0, 1.0])])
def test_the_mean_is_over_rows_and_the_square_is_averaged_over_features(half, moved) -> None:
    """Features (2x, 4x) of rows x = 1 and x = 3: mean over the batch m = (4, 8); z_g = (2, 2).

    MSE = ((m_1 - 2)^2 + (m_2 - 2)^2) / 2, d m_k / d b_k = mean x = 2, so the gradient at kappa = 2
    is 2 (m_k - 2) 2 = (8, 24), and b = (2, 4) - (8, 24)/4 = (0, -2). Half of it (the published
    code): (1, 1).
    """
    net = Net((1,), body=linear([2.0], [4.0]), head=linear([1.0, 1.0]))
    term = MeanRegularization(kappa=2.0, mu=1.0, half=half)
    prog = program(replace(FedAvg() + term, opt=whole(lr=0.25)), net)
    played = play(prog, people([1.0, 3.0]), train_plans(prog, 1), with_mean(prog, 2.0, 2.0))
    assert body(played) == moved


def test_m_of_dittos_two_models_are_apart() -> None:
    """Both models take the two steps of the first test, each with an m of its own."""
    method = replace(Ditto(lam=0.0) + MeanRegularization(kappa=1.0, mu=0.5), opt=whole(epochs=2))
    prog = program(method, product(4.0, 1.0))
    played = play(prog, people([1.0]), train_plans(prog, 1), with_mean(prog, 0.0))
    assert body(played) == [3.390625]
    assert played.clients[0]["ditto"]["body.weight"].item() == 3.390625


@pytest.mark.parametrize(("while_tuning", "b"), [(False, 1.0), (True, 1.25)])
def test_mr_rests_while_a_method_is_fine_tuned(while_tuning: bool, b: float) -> None:
    """b = 1, x = 1, z_g = 2, kappa = 1, no other loss, a step of lr 1/8: by MR b moves by
    1/8 * 2 (2 - 1) = 1/4. That is training; tuning before a test leaves b alone."""
    term = MeanRegularization(kappa=1.0, mu=1.0, while_tuning=while_tuning)
    method = parse_method("fedbabu(adapt_epochs=1)") + term
    prog = program(replace(method, opt=whole()), product(1.0, 1.0))
    start = with_mean(prog, 2.0)
    tuned = play(prog, people([1.0]), prog.schedule(1)[-1:], start)
    assert tuned.clients[0]["final/model"]["body.weight"].item() == b
    assert body(play(prog, people([1.0]), train_plans(prog, 1), start)) == [1.25]


def test_mr_regularises_the_features_below_prbm() -> None:
    """The first test again with z_p = 100 on top: f(x) is pulled as before, z_p is not."""
    term = (PRBM(), MeanRegularization(kappa=1.0, mu=0.5))
    prog = program(replace(FedAvg() + term, opt=whole(epochs=2)), product(4.0, 1.0))
    start = with_mean(prog, 0.0)
    shifted = {0: {METHOD: {"prbm.vector": torch.full((1,), 100.0)}}}
    played = play(prog, people([1.0]), train_plans(prog, 1), replace(start, clients=shifted))
    assert body(played) == [3.390625]
    assert played.clients[0][METHOD]["prbm.vector"].item() == 100.0


# ------------------------------------------------------------------ the initialisation round


@pytest.mark.parametrize("base", [FedAvg(), FedAvg(weighting="uniform"), SCAFFOLD()])
def test_the_consensual_mean_weighs_clients_by_samples(base: Method) -> None:
    """b = 1 and no training: means 6 (one row) and 2 (three rows); (6 + 3 * 2) / 4 = 3 whatever
    the method's own weights are (Alg. 1 line 3); uniform ones would give 4."""
    prog = program(replace(base + MeanRegularization(), opt=whole(lr=0.0)), product(1.0, 1.0), 2)
    played = play(prog, people([6.0], [1.0, 2.0, 3.0]), [init_plan(prog)])
    assert played.server[MR]["mean"].tolist() == [3.0]


def initial_mean(opt: Opt, x: list[float], **options: object) -> float:
    """The mean one client reports; b = h = 1, loss (h b x - 0)^2 / 2."""
    method = replace(FedAvg() + MeanRegularization(**options), opt=opt)
    prog = program(method, product(1.0, 1.0), task=Squares())
    return play(prog, people(x), [init_plan(prog)]).answers[0].up.state[MR]["mean"].item()


def steps_of(n: int) -> list[float]:
    """b before each of n steps on x = 1 and after the last: both gradients are h^2 b = b^3, lr 1/4
    (b = h all the way)."""
    b = [1.0]
    for _ in range(n):
        b.append(b[-1] - 0.25 * b[-1] ** 3)
    return b


def test_the_mean_is_over_the_data_after_one_epoch_however_long_a_round_is() -> None:
    """One full-batch step from b = 1: b = 3/4. Five epochs or seven steps are a round's business;
    the published code trains as long as a round."""
    for opt in (whole(0.25), whole(0.25, epochs=5), whole(0.25, steps=7)):
        assert initial_mean(opt, [1.0]) == 0.75
    long = initial_mean(whole(0.25, epochs=5), [1.0], init_epochs=None)
    assert long == pytest.approx(steps_of(5)[-1], abs=1e-12)
    assert initial_mean(whole(0.25, steps=7), [1.0], init_epochs=None) == pytest.approx(
        steps_of(7)[-1], abs=1e-12
    )


def test_running_mean_is_of_the_batches_as_the_model_moved() -> None:
    """Two batches of one row x = 1: features 1, then 3/4, and after both 3/4 - (3/4)^3/4.

    mu = 1: the last batch alone, 3/4. mu = 1/2: (1/2) 3/4 + (1/2) (1/2) 1 = 5/8, no bias
    correction. The clean pass sees the model after both steps.
    """
    opt = Opt(lr=0.25, batch=1)
    assert initial_mean(opt, [1.0, 1.0], mean="running", mu=1.0) == 0.75
    assert initial_mean(opt, [1.0, 1.0], mean="running", mu=0.5) == 0.625
    assert initial_mean(opt, [1.0, 1.0], mean="data", mu=0.5) == 0.75 - 0.25 * 0.75**3


def test_a_strong_kappa_does_not_touch_the_first_training() -> None:
    """Without DBE (Alg. 1 line 2), also where the term follows the running mean."""
    for mean in ("data", "running"):
        weak, strong = (
            initial_mean(whole(0.25, epochs=2), [1.0], mean=mean, kappa=k, init_epochs=None)
            for k in (0.0, 50.0)
        )
        assert weak == strong


def test_all_clients_take_part_in_the_first_round_whatever_the_participation() -> None:
    prog = Program(replace(FedAvg() + DBE(), opt=whole()), mlp(), 4)
    played = run(prog, tables(5, 6, 7, 1), 3, participation=0.25)
    special = [a.cid for a in played.answers if a.plan.kind == "special"]
    assert special == [0, 1, 2, 3]
    assert [len([a for a in played.answers if a.plan.t == t]) for t in (1, 2, 3)] == [1, 1, 1]
    assert all(set(a.up.state) == {MR} for a in played.answers if a.plan.kind == "special")


@pytest.mark.parametrize("base", [FedAvg(), FedPer(), Ditto(), SCAFFOLD()])
def test_weights_of_the_first_round_vanish_and_its_mean_is_constant(base: Method) -> None:
    """The server's model, personal heads, z_p and Ditto's second model are as at the start."""
    net = mlp(norm=True)
    prog = Program(replace(base + DBE(), opt=whole(0.5, epochs=2)), net, 3)
    data = tables(5, 6, 1)
    first = play(prog, data, [init_plan(prog)])
    initial = prog.nets[0].initial
    trees = [first.server[METHOD], *(t for own in first.clients.values() for t in own.values())]
    for tree in trees:
        for key in tree.keys() & initial.keys():
            assert torch.equal(tree[key], initial[key]) or not tree[key].any(), key
    later = play(prog, data, train_plans(prog, 3), first)
    assert torch.equal(later.server[MR]["mean"], first.server[MR]["mean"])
    assert not same(later.server[METHOD], first.server[METHOD])


# ------------------------------------------------------------------ noise (Table 3)


def test_noise_is_q_times_a_normal_of_scale_s() -> None:
    value = torch.zeros(20_000)
    noisy = perturb(value, 0.5, 0.2, torch.Generator().manual_seed(0))
    assert noisy.std().item() == pytest.approx(0.1, rel=0.02)
    assert abs(noisy.mean().item()) < 0.003
    drawn = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(noisy, 0.1 * drawn)
    for s, q in ((0.0, 1.0), (1.0, 0.0)):
        assert perturb(value, s, q, torch.Generator()) is value


def test_noise_is_on_every_clients_report() -> None:
    def reports(**noise: float) -> list[Tensor]:
        prog = Program(replace(FedAvg() + DBE(**noise), opt=whole()), mlp(), 2)
        played = play(prog, tables(5, 6), [init_plan(prog)])
        return [a.up.state[MR]["mean"] for a in played.answers]

    plain, noisy = reports(), reports(noise_scale=0.5, noise_weight=0.2)
    prog = Program(FedAvg() + DBE(), mlp(), 2)
    for cid in (0, 1):
        drawn = torch.randn(5, generator=init_plan(prog).gen(cid, "noise"))
        assert torch.allclose(noisy[cid] - plain[cid], 0.1 * drawn, atol=1e-6)
    assert all(map(torch.equal, reports(noise_scale=0.5), plain))


# ------------------------------------------------------------------ PRBM, eq. (4)


def test_prbm_by_hand_over_two_rounds_with_weight_decay() -> None:
    """Output h (b + p), loss its half square (target 0), lr 1/4, weight decay 1/2 on b and h.

    Round 1, b = h = 1, p = 0: all gradients 1; b = h = 1 - (1 + 1/2)/4 = 5/8, p = -1/4.
    Round 2: o = 5/8 (5/8 - 1/4) = 15/64; p = -1/4 - (5/8)(15/64)/4 = -587/2048 (a p that is reset
    would give -(5/8)(25/64)/4; decayed, +1/32 more).
    """
    method = replace(FedAvg() + PRBM(), opt=whole(0.25, weight_decay=0.5))
    prog = program(method, product(1.0, 1.0), task=Squares())
    one, two = prog.schedule(2)
    played = play(prog, people([1.0]), [one])
    assert body(played) == [0.625]
    assert played.clients[0][METHOD]["prbm.vector"].item() == -0.25
    later = play(prog, people([1.0]), [two], played)
    assert later.clients[0][METHOD]["prbm.vector"].item() == -587 / 2048
    for answer in (*played.answers, *later.answers):
        assert set(answer.up.state[METHOD]) == set(answer.down.state[METHOD])
        assert set(answer.up.state[METHOD]) == {"body.weight", "head.weight"}


def test_prbm_stays_as_it_is_while_its_client_is_away() -> None:
    prog = Program(replace(FedAvg() + PRBM(), opt=whole()), mlp(), 4)
    plans = prog.schedule(6)
    played = play(prog, tables(5, 6, 7, 8), plans, participation=0.25)
    held: dict[int, Tensor] = {}
    for answer in played.answers:
        held[answer.cid] = answer.kept[METHOD]["prbm.vector"]
    assert len(held) > 1, "several clients must have been there"
    for cid, vector in held.items():
        assert torch.equal(played.clients[cid][METHOD]["prbm.vector"], vector)
        assert vector.any()


def test_a_clients_prediction_has_its_translation_the_global_one_has_none() -> None:
    prog = Program(replace(FedAvg() + PRBM(), opt=whole(0.5)), mlp(), 2)
    played = run(prog, tables(9, 8), 2)
    x, net, w = torch.randn(4, 4), prog.nets[0], played.server[METHOD]
    personal = {METHOD: {**w, **played.clients[0][METHOD]}}
    z = torch.relu(x @ w["body.0.weight"].T + w["body.0.bias"])
    for state, shift in ((personal, played.clients[0][METHOD]["prbm.vector"]), ({}, 0.0)):
        logits = (z + shift) @ w["head.weight"].T + w["head.bias"]
        predicted = prog.method.predict(net, state or global_state(prog, played.server), x)
        assert torch.allclose(predicted, logits.softmax(1), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "at", "size"),
    [
        ("cnn4(stages=fine)", "conv1", 28800),  # Table 1
        ("cnn4(stages=fine)", "conv2", 10816),
        ("cnn4(stages=fine)", "fc", 512),
        ("cnn4(stages=fine)", None, 512),
        ("cnn4", None, 512),
        ("resnet18(stages=fine)", "stem", 16384),  # Table 7
        ("resnet18(stages=fine)", "layer4", 2048),
        ("resnet18(stages=fine)", None, 512),
    ],
)
def test_sizes_of_the_papers_tables(model: str, at: str | None, size: int) -> None:
    """64x64 pictures of three channels: an entry per channel and position."""
    net = build_model(model, (3, 64, 64), 200, seed=0)
    stage, after = at or net.representation, list(net.reads)
    PRBM(at).extend(net, 1)
    assert net.initial["prbm.vector"].numel() == size
    assert prod(net.shape_of(stage)) == size
    assert net.reads["prbm"] == stage
    assert net.reads[after[after.index(stage) + 1]] == "prbm"
    assert not net.initial["prbm.vector"].any()


@pytest.mark.parametrize("at", ["conv1", "conv2", "fc"])
def test_dbe_trains_at_every_position(at: str) -> None:
    net = build_model("cnn4(stages=fine)", (1, 16, 16), 10, seed=0)
    pictures = Table(torch.rand(4, 1, 16, 16), torch.tensor([0, 1, 2, 0]))
    data = Tables([ClientData(pictures, None, None, 10)] * 2)
    prog = Program(replace(FedAvg() + DBE(at=at), opt=whole(0.01)), net, 2)
    played = run(prog, data, 1)
    assert played.server[MR]["mean"].shape == prog.nets[0].shape_of(at)
    assert played.clients[0][METHOD]["prbm.vector"].any()
    assert finite(played.server)


def test_positions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="last stage"):
        Program(FedAvg() + PRBM(at="head"), mlp(), 1)
    with pytest.raises(UnknownName, match="conv9"):
        Program(FedAvg() + PRBM(at="conv9"), mlp(), 1)


# ------------------------------------------------------------------ defaults by family


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        ("cnn4", (1, 28, 28), (50.0, 1.0)),
        ("resnet18", (3, 32, 32), (1.0, 0.1)),
        ("fasttext(vocabulary=50)", (7,), (0.1, 1.0)),
        ("mlp", (1, 8, 8), (1.0, 1.0)),
        ("har_cnn", (9, 1, 64), (50.0, 1.0)),
    ],
)
def test_kappa_and_mu_go_by_the_network(model, shape, expected) -> None:
    """Appendix C.2: CNN 50 and 1.0, ResNet-18 1 and 0.1, fastText 0.1 and 1.0."""
    net = build_model(model, shape, 6, seed=0)
    assert tuple(MeanRegularization()._strengths(net)) == expected
    assert tuple(MeanRegularization(kappa=0.0)._strengths(net)) == (0.0, expected[1])
    assert tuple(MeanRegularization(mu=0.0)._strengths(net)) == (expected[0], 0.0)


def test_batch_norm_that_a_method_adds_behind_the_features_does_not_count() -> None:
    net = build_model("cnn4", (1, 28, 28), 6, seed=0)
    prog = Program(DualFed() + MeanRegularization(), net, 2)
    assert prog.nets[0].match("@bn"), "DualFed's projector has BatchNorm"
    assert tuple(prog.method.terms[0]._strengths(prog.nets[0])) == (50.0, 1.0)


# ------------------------------------------------------------------ what reduces to what

OPT = Opt(lr=0.1, epochs=2, batch=4, momentum=0.5, weight_decay=1e-2)


def trained(method: Method, norm: bool = True, rounds: int = 3, **how: object) -> Played:
    prog = Program(replace(method, opt=OPT), mlp(norm=norm), 4, seed=5)
    return run(prog, tables(9, 5, 1, 6), rounds, **how)


def test_neither_part_is_fedavg() -> None:
    """kappa = 0 switches MR off bit for bit, alone or beside PRBM; the parts each change what is
    trained; the recipe is their sum."""
    plain = trained(FedAvg()).server[METHOD]
    assert same(trained(FedAvg() + MeanRegularization(kappa=0.0)).server[METHOD], plain)
    memory = trained(FedAvg() + PRBM())
    both_off = trained(FedAvg() + DBE(kappa=0.0))
    assert same(both_off.server[METHOD], memory.server[METHOD])
    assert all(same(both_off.clients[c][METHOD], memory.clients[c][METHOD]) for c in range(4))
    regularised = trained(FedAvg() + MeanRegularization(kappa=5.0)).server[METHOD]
    both = trained(FedAvg() + DBE(kappa=5.0))
    models = [plain, memory.server[METHOD], regularised, both.server[METHOD]]
    assert all(not same(a, b) for i, a in enumerate(models) for b in models[:i])
    assert both.digest == trained(FedAvg() + PRBM() + MeanRegularization(kappa=5.0)).digest
    assert both.digest == trained(parse_method("fedavg + dbe(kappa=5)")).digest


# ------------------------------------------------------------------ what travels


def test_after_the_first_round_messages_are_fedavgs_but_for_one_mean_per_client() -> None:
    """Section 4.5. z_g has 5 numbers, 20 bytes: up once before FL, down once per client, at its
    first training round, whichever that is."""
    plain = trained(FedAvg(), participation=0.5, rounds=5)
    played = trained(FedAvg() + DBE(), participation=0.5, rounds=5)
    size = {a.cid: nbytes(a.up.state) for a in plain.answers}
    seen: set[int] = set()
    for answer in played.answers:
        down, up = nbytes(answer.down.state), nbytes(answer.up.state)
        if answer.plan.kind == "special":
            assert (down, up) == (next(iter(size.values())), 20)
            continue
        assert up == size[answer.cid]
        assert down == size[answer.cid] + (0 if answer.cid in seen else 20)
        seen.add(answer.cid)
    trained_twice = [a.cid for a in played.answers if a.plan.kind == "train"]
    assert len(trained_twice) > len(seen) > 1, "some must have been there twice"
    assert played.server[MR]["holders"].tolist() == [cid in seen for cid in range(4)]


def test_the_kept_mean_does_what_a_mean_sent_every_round_would() -> None:
    prog = Program(replace(FedAvg() + DBE(kappa=5.0), opt=OPT), mlp(), 3)
    data = tables(9, 5, 6)
    sent_once = run(prog, data, 3)
    state = play(prog, data, [init_plan(prog)])
    for plan in train_plans(prog, 3):
        never_sent = {**state.server[MR], "holders": torch.zeros(3, dtype=torch.bool)}
        state = play(prog, data, [plan], replace(state, server=state.server | {MR: never_sent}))
        assert all(MR in a.down.state for a in state.answers)
    assert same(state.server[METHOD], sent_once.server[METHOD])


def test_a_client_that_lost_its_state_is_sent_the_mean_again() -> None:
    """It trains one round without MR (as kappa = 0 would) and says so."""
    data = tables(9, 5)
    prog = Program(replace(FedAvg() + MeanRegularization(kappa=5.0), opt=OPT), mlp(), 2)
    off = Program(replace(FedAvg() + MeanRegularization(kappa=0.0), opt=OPT), mlp(), 2)
    one, two, three = train_plans(prog, 3)
    before = play(prog, data, [init_plan(prog), one])
    lost = replace(before, clients={1: before.clients[1]})
    after = play(prog, data, [two], lost)
    assert MR not in after.answers[0].down.state
    down = Down(two, before.answers[-1].down.state | {METHOD: before.server[METHOD]})
    without, _ = client(Visit(off, 0, data.client(0), down, None))
    assert same(after.answers[0].up.state[METHOD], without.state[METHOD])
    assert after.server[MR]["holders"].tolist() == [False, True]
    third = play(prog, data, [three], after)
    assert MR in third.answers[0].down.state
    assert MR not in third.answers[1].down.state
    assert third.server[MR]["holders"].tolist() == [True, True]


def test_whoever_did_not_answer_and_newcomers_are_sent_the_mean() -> None:
    data = tables(9, 5, 6)
    prog = Program(replace(FedAvg() + MeanRegularization(), opt=OPT), mlp(), 2)
    start = play(prog, data, [init_plan(prog)])
    one, two = train_plans(prog, 2)
    r = Round(prog, one, start.server, [0, 1])
    up, own = client(Visit(prog, 0, data.client(0), send(r, 0), start.clients[0]))
    r.add(0, up)
    r.add(1, None)
    later = Round(prog, two, merge(r), [0, 1, 2])
    assert [MR in send(later, cid).state for cid in (0, 1, 2)] == [False, True, True]
    assert torch.equal(own[MR]["mean"], start.server[MR]["mean"])
    up, _ = client(Visit(prog, 2, data.client(2), send(later, 2), None))
    later.add(0, None)
    later.add(1, None)
    later.add(2, up)
    assert merge(later)[MR]["holders"].tolist() == [True, False]


# ------------------------------------------------------------------ on other methods

ON = ["fedavg", "scaffold", "fedprox", "moon", "ditto", "fedper", "fedrep", "fedbabu"]
AWKWARD = (((0, 1), 13), ((3,), 1), ((4, 5, 6), 9), ((7, 8), 11))


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("base", [*ON, "fedpac", "dualfed", "fedcr(dim=4)"])
def test_dbe_goes_on_every_method(base: str, norm: str) -> None:
    """Tables 4 and 6: clients that lack classes, one with a single row, half of them a round.
    Methods with models of their own take MR alone."""
    term = "mean_regularization" if base in ("ditto", "fedper", "fedrep") else "dbe"
    net = build_model(f"mlp(hidden=[8], norm='{norm}')", (1, 8, 8), 10, seed=0)
    opt = Opt(lr=0.05, batch=8)
    prog = Program(replace(parse_method(f"{base} + {term}"), opt=opt), net, 4)
    played = run(prog, digits(*AWKWARD, held_out=3), 2, participation=0.5)
    assert finite(played.server)
    for answer in played.answers:
        assert finite(answer.up.state), f"client {answer.cid}, {answer.plan}"
        assert not any(k.startswith("prbm") for t in answer.up.state.values() for k in t)
        if answer.plan.kind == "train" and term == "dbe":
            assert answer.kept[METHOD]["prbm.vector"].any()
    assert played.server[MR]["mean"].any()


@pytest.mark.parametrize("base", ON)
def test_dbe_changes_what_every_method_learns(base: str) -> None:
    """A pull that is lost in a method's own loop would leave its shared model as it was."""
    with_and_without = [
        trained(parse_method(f"{base} + mean_regularization(kappa={k})"), norm=False, rounds=2)
        for k in (0, 20)
    ]
    off, on = (p.server[METHOD]["body.0.weight"] for p in with_and_without)
    assert not torch.equal(off, on)


def test_extending_one_net_leaves_the_template_alone() -> None:
    net = mlp()
    before = deepcopy(net.initial)
    Program(FedAvg() + DBE(), net, 2)
    assert same(net.initial, before)
