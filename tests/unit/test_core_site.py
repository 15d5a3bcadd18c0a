"""The one local training loop: what it trains, in what order, with what, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from fedloom.core.client import client
from fedloom.core.data import ClientData
from fedloom.core.message import Down, Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt, Phase
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import CPU, Site, Visit
from fedloom.core.term import Batch, Term
from fedloom.core.tree import clone
from fedloom.core.wire import pack, unpack
from fedloom.errors import BadInput, TrainingError
from helpers import Played, mlp, play, run, same, tables

SIX = tables(6, 4)
OPT = Opt(lr=0.1, epochs=1, batch=3)


def visit(
    method: Method,
    net: Net | None = None,
    t: int = 1,
    data: ClientData | None = None,
    device: torch.device = CPU,
) -> Visit:
    program = Program(method, net or mlp(), clients=2, seed=4)
    plan = Plan(t, seed=4, clients=2)
    down = send(Round(program, plan, initial_server(program)), 0)
    return Visit(program, 0, data or SIX.client(0), down, None, device)


def site(method: Method | None = None, net: Net | None = None, **where: Any) -> Site:
    return Site(visit(method or Method(opt=OPT), net, **where))


@dataclass(frozen=True)
class Notes(Term):
    """Writes down the rows of every batch."""

    name: ClassVar[str] = "notes"
    book: tuple[list, ...] = ()

    def inputs(self, b, s):
        self.book[0].append(b.idx.tolist())


def noting() -> tuple[Method, list[list[int]]]:
    book: list[list[int]] = []
    return Method(opt=OPT) + Notes((book,)), book


# ------------------------------------------------------------------ what fit trains


def test_fit_replaces_the_model_and_leaves_what_was_received() -> None:
    s = site()
    before = clone(s.received)
    trained = s.fit(Phase())
    assert s.w is trained
    assert not torch.equal(s.w["head.weight"], before["head.weight"])
    assert same(s.received, before)
    assert same(s.down[METHOD], before)
    assert not any(v.requires_grad for v in trained.values())


def test_a_second_model_is_a_copy_that_leaves_the_first_alone() -> None:
    s = site()
    w, second = s.w, s.start
    before = clone(w)
    trained = s.fit(Phase(), w=second)
    assert s.w is w
    assert same(w, before)
    assert same(second, before)
    assert not torch.equal(trained["head.weight"], before["head.weight"])
    assert s.mean_loss is None, "the loss that is logged is the model's own"


def test_start_is_a_copy_of_the_initial_values_and_what_was_received() -> None:
    s = site(Method(shared="body.*"))
    s.start["body.0.weight"].add_(1)
    s.start["head.weight"].add_(1)
    assert same(s.start, s.net.tree())
    assert not {v.data_ptr() for v in s.start.values()} & {
        v.data_ptr() for v in [*s.down[METHOD].values(), *s.net.initial.values()]
    }


class Layer(Term):
    """Inserts a linear stage."""

    name: ClassVar[str] = "layer"

    def extend(self, net, clients):
        net.insert(self.name, nn.Linear(5, 5))


class Untrained(Layer):
    name: ClassVar[str] = "untrained"
    train: ClassVar[bool] = False


def moved(before: dict, after: dict) -> set[str]:
    return {k for k in before if not torch.equal(before[k], after[k])}


@pytest.mark.parametrize("pattern", ["head.*", "body.*", "head.bias", "*"])
def test_a_phase_trains_its_pattern_and_every_stage_of_a_term(pattern: str) -> None:
    s = site(Method(opt=OPT) + Layer() + Untrained())
    s.fit(Phase("some", pattern))
    of_method = s.net.match(pattern) & s.net.match("body.* head.*")
    assert moved(s.received, s.w) == of_method | {"layer.weight", "layer.bias"}


def test_a_special_round_has_no_active_term() -> None:
    made = visit(Method(opt=OPT) + Layer())
    plan = replace(made.down.plan, kind="special", owner="layer.x")
    s = Site(replace(made, down=Down(plan, made.down.state)))
    assert s.terms == ()
    s.fit(Phase())
    assert moved(s.received, s.w) == s.net.match("body.* head.*")


class Flat(Method):
    """A loss without gradient: only weight decay moves anything."""

    name: ClassVar[str] = "flat"

    def loss(self, b, s):
        return 0.0 * b.out[s.net.logits].sum()


def test_weight_decay_is_not_for_a_terms_stages() -> None:
    """Six rows in threes: two steps of w <- (1 - 0.1 * 0.5) w, so 0.9025 w. A translation that
    shrank would no longer be the client's mean."""
    s = site(Flat(opt=replace(OPT, weight_decay=0.5)) + Layer())
    s.fit(Phase())
    assert torch.allclose(s.w["head.weight"], 0.9025 * s.received["head.weight"])
    assert torch.equal(s.w["layer.weight"], s.received["layer.weight"])


def test_clip_bounds_the_norm_of_the_gradient() -> None:
    """One step of lr 0.1 with the gradient cut to norm 0.01 moves all weights by 0.001."""
    s = site(Method(opt=replace(OPT, batch=6, clip=0.01)))
    s.fit(Phase())
    step = sum(float((s.w[k] - s.received[k]).pow(2).sum()) for k in s.w) ** 0.5
    assert step == pytest.approx(0.001, rel=1e-3)


def test_momentum_lives_in_one_fit() -> None:
    """A second fit begins without the first one's velocity: two fits of one step are plain SGD."""
    runs = {}
    for momentum in (0.0, 0.9):
        s = site(Method(opt=replace(OPT, batch=6, momentum=momentum)))
        s.fit(Phase())
        s.fit(Phase())
        runs[momentum] = s.w
    assert same(runs[0.0], runs[0.9])
    s = site(Method(opt=replace(OPT, batch=6, momentum=0.9, epochs=2)))
    assert not same(s.fit(Phase()), runs[0.9])


class Doubles(Method):
    """Twice the gradient, by its own update rule."""

    name: ClassVar[str] = "doubles"

    def step(self, b, s):
        s.apply({k: 2 * v for k, v in s.grad(b).items()})


def test_plain_ignores_a_methods_own_update_rule() -> None:
    whole = replace(OPT, batch=6)
    own, plain, usual = site(Doubles(opt=whole)), site(Doubles(opt=whole)), site(Method(opt=whole))
    own.fit(Phase())
    plain.fit(Phase(), plain=True)
    usual.fit(Phase())
    assert same(plain.w, usual.w)
    for k in own.w:
        step = plain.w[k] - plain.received[k]
        assert torch.allclose(own.w[k] - own.received[k], 2 * step, atol=1e-7)


# ------------------------------------------------------------------ travel


class Phases(Method):
    name: ClassVar[str] = "phases"

    @property
    def phases(self):
        return (Phase("head", "head.*", epochs=2, lr=0.5), Phase("body", "body.*"))


def test_travel_is_steps_times_lr_per_tensor() -> None:
    """Two steps an epoch. Head: 2 epochs, lr 0.5: 4 * 0.5 = 2. Body: 1 epoch, lr 0.1: 0.2."""
    s = site(Phases(opt=OPT))
    s.method.local(s)
    assert s.travel == {
        "head.weight": 2.0,
        "head.bias": 2.0,
        "body.0.weight": pytest.approx(0.2),
        "body.0.bias": pytest.approx(0.2),
    }


def test_travel_adds_up_over_fits_and_follows_the_decay() -> None:
    """Round 3 with decay 0.5: lr 0.1 * 0.25, two steps, twice."""
    s = site(Method(opt=replace(OPT, decay=0.5)), t=3)
    s.fit(Phase())
    s.fit(Phase())
    assert s.travel["head.bias"] == pytest.approx(4 * 0.025)


def test_travel_counts_only_fits_of_the_model_itself() -> None:
    s = site()
    s.fit(Phase(epochs=5), w=s.start)
    assert s.travel == {}
    s.fit(Phase())
    assert s.travel["head.bias"] == pytest.approx(0.2)


class SkipsHalf(Method):
    """Applies every other gradient."""

    name: ClassVar[str] = "skips_half"

    def step(self, b, s):
        g = s.grad(b)
        if s.steps % 2 == 0:
            s.apply(g)


def test_travel_counts_steps_that_were_taken() -> None:
    s = site(SkipsHalf(opt=OPT))
    s.fit(Phase())
    assert s.travel["head.bias"] == pytest.approx(0.1)
    assert s.steps == 2


# ------------------------------------------------------------------ trees other than the model


@dataclass(frozen=True)
class Spring(Term):
    """0.5 ||head.bias||^2 of whatever tree is being differentiated: its gradient is that tree's
    bias."""

    name: ClassVar[str] = "spring"

    def loss(self, b, s):
        return 0.5 * s.w["head.bias"].pow(2).sum()


@dataclass(frozen=True)
class Pull(Term):
    """The same as a correction."""

    name: ClassVar[str] = "pull"

    def grads(self, g, s):
        return g | {"head.bias": g["head.bias"] + s.w["head.bias"]}


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Method):
    """Takes the gradient at a second tree, as Per-FedAvg and pFedMe do."""

    name: ClassVar[str] = "elsewhere"
    found: tuple[list, ...] = ()

    def step(self, b, s):
        before = s.w
        w2 = {k: v.detach() + 3 if k in s.keys else v for k, v in s.w.items()}
        for k in s.keys:
            w2[k].requires_grad_()
        self.found[0].append((s.grad(b, w2)["head.bias"], w2["head.bias"].detach()))
        assert s.w is before


@pytest.mark.parametrize("term", [Spring(), Pull()])
def test_a_term_sees_the_tree_that_is_differentiated(term: Term) -> None:
    """With the term the gradient is larger by w2's bias, not by the model's, and not by zero."""
    gradients = []
    for terms in ((), (term,)):
        found: list = []
        s = site(Elsewhere(opt=replace(OPT, batch=6), terms=terms, found=(found,)))
        s.fit(Phase())
        gradients.append(found[0])
    (without, w2), (with_term, _) = gradients
    assert torch.allclose(with_term - without, w2, atol=1e-6)
    assert w2.abs().min() > 1


def test_terms_of_a_fit_stand_in_for_the_methods_and_only_there() -> None:
    whole = replace(OPT, batch=6)
    s, plain = site(Method(opt=whole) + Spring()), site(Method(opt=whole))
    alone = s.fit(Phase(), w=s.start, terms=())
    assert same(alone, plain.fit(Phase(), w=plain.start))
    assert s.terms == (Spring(),)
    assert not same(s.fit(Phase(), w=s.start), alone)


# ------------------------------------------------------------------ order of batches


def test_two_fits_of_a_round_have_different_orders() -> None:
    method, book = noting()
    s = site(method)
    s.fit(Phase(epochs=3))
    s.fit(Phase(epochs=3))
    assert len(book) == 12
    assert book[:6] != book[6:]


def test_a_second_models_fit_does_not_move_the_first_ones_order() -> None:
    orders = []
    for second_first in (False, True):
        method, book = noting()
        s = site(method)
        if second_first:
            s.fit(Phase(), w=s.start)
            s.fit(Phase(), w=s.start)
            book.clear()
        s.fit(Phase(epochs=3))
        orders.append(list(book))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("other", [{"t": 2}, {"data": SIX.client(0)}])
def test_the_order_is_a_function_of_the_round(other: dict) -> None:
    books = []
    for where in ({}, other):
        method, book = noting()
        site(method, **where).fit(Phase(epochs=3))
        books.append(book)
    assert (books[0] != books[1]) == ("t" in other)


# ------------------------------------------------------------------ BatchNorm


def test_a_frozen_body_keeps_its_statistics() -> None:
    s = site(net=mlp(norm=True))
    s.fit(Phase("head", "head.*"))
    assert moved(s.received, s.w) == {"head.weight", "head.bias"}


def test_frozen_eval_off_lets_a_frozen_bodys_statistics_move() -> None:
    s = site(net=mlp(norm=True))
    s.fit(Phase("head", "head.*", frozen_eval=False))
    assert moved(s.received, s.w) == s.net.match("head.* @stats")


def test_training_the_body_moves_its_statistics() -> None:
    s = site(net=mlp(norm=True))
    s.fit(Phase("body", "body.*"))
    assert s.w["body.1.num_batches_tracked"].item() == 2
    assert s.w["body.1.num_batches_tracked"].dtype == torch.int64


def test_a_client_with_one_row_trains_with_batch_norm() -> None:
    s = site(net=mlp(norm=True), data=tables(1).client(0))
    s.fit(Phase())
    assert s.w["body.1.num_batches_tracked"].item() == 0
    assert torch.isfinite(s.w["head.weight"]).all()
    assert not torch.equal(s.w["head.weight"], s.received["head.weight"])


# ------------------------------------------------------------------ random layers


class Sketches(Term):
    """Runs a random layer outside the loop and keeps what it drew."""

    name: ClassVar[str] = "sketches"

    def finish(self, s):
        out = s.net(s.w, s.data.train.x(torch.arange(3)), train=True, want="body")["body"]
        drawn = {"z": out.detach(), "r": torch.rand(2)}
        s.own[self.name] = drawn
        return {self.name: drawn}

    def aggregate(self, r):
        return {self.name: r.mean(self.name)}


def dropout_program() -> Program:
    method = Method(opt=OPT, shared="* !head.*") + Sketches()
    return Program(method, mlp(dropout=0.5, hidden=16), clients=2, seed=4)


def test_random_layers_in_and_outside_the_loop_resume_bit_for_bit() -> None:
    straight = run(dropout_program(), SIX, 4)
    program = dropout_program()
    plans = program.schedule(4)
    torch.manual_seed(99)
    half = play(program, SIX, plans[:2])
    torch.manual_seed(7)
    saved = Played(unpack(pack(half.server)), {c: unpack(pack(s)) for c, s in half.clients.items()})
    resumed = play(dropout_program(), SIX, plans[2:], saved, order=lambda ids: ids[::-1])
    assert resumed.digest == straight.digest
    assert len(straight.server["sketches"]["z"].unique()) > 2


def test_dropout_is_active_in_training_and_different_in_two_fits() -> None:
    """The same rows in one batch: without dropout two fits from one tree would be equal."""
    method = Method(opt=replace(OPT, batch=6))
    wet, dry = site(method, mlp(dropout=0.5, hidden=32)), site(method, mlp(hidden=32))
    a, b = (wet.fit(Phase(), w=wet.start) for _ in range(2))
    assert not torch.allclose(a["head.weight"], b["head.weight"], atol=1e-6)
    a, b = (dry.fit(Phase(), w=dry.start) for _ in range(2))
    assert torch.allclose(a["head.weight"], b["head.weight"], atol=1e-6)


def test_a_second_models_fit_does_not_move_the_first_ones_dropout() -> None:
    """Every fit has a stream of its own, or Ditto's global model would not be FedAvg's."""
    alone, after = (site(net=mlp(dropout=0.5, hidden=32)) for _ in range(2))
    after.fit(Phase(epochs=2), w=after.start)
    assert same(alone.fit(Phase()), after.fit(Phase()))


def test_a_visit_neither_uses_nor_moves_torchs_stream() -> None:
    made = visit(Method(opt=OPT) + Sketches(), mlp(dropout=0.5))
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    first, _ = client(made)
    assert torch.equal(torch.rand(1), wanted)
    again, _ = client(made)
    assert same(first.state[METHOD], again.state[METHOD])


# ------------------------------------------------------------------ what hooks see


def test_scan_is_the_whole_training_set_in_order_in_evaluation_mode() -> None:
    s = site(net=mlp(norm=True, dropout=0.5))
    rows = s.data.train.x(torch.arange(6))
    assert torch.equal(s.scan("body"), s.net(s.w, rows)["body"])
    assert s.w["body.1.num_batches_tracked"].item() == 0
    other = {k: v + 1 for k, v in s.w.items()}
    assert torch.equal(s.scan("head", other), s.net(other, rows)["head"])
    assert s.scan("head", split=s.data.test).shape == (6, 3)
    assert not s.scan("head").requires_grad


def test_a_scan_is_remembered_until_a_weight_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in place; and other rows, another stage or another tree are other questions."""
    s, runs, run = site(), [], Net._run
    monkeypatch.setattr(Net, "_run", lambda *a: (runs.append(a[2]), run(*a))[1])
    first = s.scan("body")
    assert torch.equal(s.scan("body"), first)
    assert runs == ["body"]
    s.w["body.0.bias"].add_(1.0)
    assert not torch.equal(s.scan("body"), first)
    s.scan("body", split=s.data.test)
    s.scan("body", clone(s.w))
    s.scan("head")
    assert runs == ["body"] * 5 + ["head"]


def test_counts_have_a_place_for_every_class() -> None:
    """Rows of class 1, 1, 3 of five classes."""
    data = SIX.client(0)
    labels = replace(data.train, rows=data.train.rows[:3], y=torch.tensor([1, 1, 3]))
    s = site(net=mlp(classes=5), data=ClientData(labels, None, None, 5))
    assert s.counts.tolist() == [0, 2, 0, 1, 0]


@pytest.mark.parametrize("what", ["phase", "lr", "epoch", "keys", "modes"])
def test_what_exists_only_inside_fit(what: str) -> None:
    s = site()
    s.fit(Phase())
    with pytest.raises(RuntimeError, match="only inside fit"):
        getattr(s, what)


@dataclass(frozen=True)
class Looks(Term):
    name: ClassVar[str] = "looks"
    seen: tuple[list, ...] = ()

    def loss(self, b, s):
        self.seen[0].append((s.phase.name, s.epoch, s.steps, s.lr, s.keys, set(b.out)))
        return 0.0


def test_what_a_hook_sees_inside_fit() -> None:
    seen: list = []
    s = site(Method(opt=replace(OPT, decay=0.5)) + Looks((seen,)), t=2)
    s.fit(Phase("tune", "head.*", epochs=2))
    outputs = {"input", "body", "head"}
    keys = ["head.weight", "head.bias"]
    assert seen == [("tune", i // 2, i, 0.05, keys, outputs) for i in range(4)]


def test_a_newcomer_is_an_id_beyond_the_runs_clients() -> None:
    """Of two clients."""
    made = visit(Method())
    assert [Site(replace(made, cid=cid)).newcomer for cid in range(3)] == [False, False, True]


def test_a_private_copy_of_what_is_kept() -> None:
    own = {METHOD: {"head.weight": torch.zeros(3, 5), "head.bias": torch.zeros(3)}}
    s = Site(replace(visit(Method(shared="body.*")), own=own))
    s.own[METHOD]["head.bias"].add_(1)
    assert own[METHOD]["head.bias"].tolist() == [0, 0, 0]
    assert torch.equal(s.w["head.weight"], torch.zeros(3, 5))


# ------------------------------------------------------------------ errors


class Explodes(Method):
    name: ClassVar[str] = "explodes"

    def loss(self, b, s):
        return super().loss(b, s) * float("inf")


def test_a_loss_that_is_not_finite_names_client_round_phase_and_cure() -> None:
    s = site(Explodes(opt=OPT), t=3)
    where = r"client 0, round 3, phase 'tune', epoch 1: .*lower lr \(now 0\.1\) or set clip"
    with pytest.raises(TrainingError, match=where):
        s.fit(Phase("tune"))


def test_the_mean_loss_is_over_the_batches_of_the_last_fit() -> None:
    """lr 0: both batches of three see the same model, so the mean is that of the six rows."""
    s = site(Method(opt=replace(OPT, lr=0.0)))
    s.fit(Phase())
    logits = s.scan("head")
    assert s.mean_loss == pytest.approx(float(s.task.loss(logits, s.data.train.y)), rel=1e-5)


# ------------------------------------------------------------------ devices


class Done(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class OneStep(Method):
    """Takes one step, writes down where every tensor is, and stops (a meta tensor has no value,
    so the loop's check for finiteness cannot run)."""

    name: ClassVar[str] = "one_step"
    act: Callable[[Batch, Site], None]

    def client_init(self, s):
        return {**super().client_init(s), self.name: {"v": s.net.tree()["head.bias"]}}

    def step(self, b, s):
        super().step(b, s)
        self.act(b, s)
        raise Done


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_step_happens_on_the_sites_device(device: str) -> None:
    """Every tensor a hook can reach is there; on `meta` an operation that mixes devices fails."""
    places: dict[str, set[str]] = {}

    def look(b: Batch, s: Site) -> None:
        trees = {"w": s.w, "received": s.received, "start": s.start, "out": b.out}
        trees |= {f"own {k}": t for k, t in s.own.items()}
        trees |= {f"down {k}": t for k, t in s.down.items()}
        trees |= {"grads": s.grad(b)}
        trees |= {"batch": {"x": b.x, "y": b.y, "target": b.target}}
        trees |= {"asked": {"counts": s.counts, "scan": s.scan("head")}}
        places.update({name: {v.device.type for v in t.values()} for name, t in trees.items()})

    method = OneStep(shared="* !head.*", opt=replace(OPT, momentum=0.9, clip=1.0), act=look)
    s = site(method + Spring() + Layer(), mlp(norm=True), device=torch.device(device))
    with pytest.raises(Done):
        s.fit(Phase())
    assert len(places) == 10
    assert set().union(*places.values()) == {device}, places


def test_a_phase_that_trains_nothing_is_refused_by_name() -> None:
    s = site(Method(opt=OPT), mlp())
    with pytest.raises(BadInput, match="phase 'body' trains nothing"):
        s.fit(Phase("body", "nothing.*"))


class Modes(Term):
    """Writes down which stages are in training mode."""

    name: ClassVar[str] = "modes"
    seen: ClassVar[list[frozenset[str]]] = []

    def loss(self, b, s):
        self.seen.append(s.modes)
        return 0.0


@pytest.mark.parametrize(("pattern", "active"), [("*", True), ("body.*", True), ("head.*", False)])
def test_dropout_as_a_stage_follows_the_stage_it_reads(pattern: str, active: bool) -> None:
    """It has no tensor of its own that a phase could name. Where it drops, half of what reaches
    the head is zero and the rest is doubled."""
    net = Net((4,), body=nn.Linear(4, 64), drop=nn.Dropout(0.5), head=nn.Linear(64, 3))
    Modes.seen.clear()
    s = site(Method(opt=replace(OPT, batch=6)) + Modes(), net)
    s.fit(Phase("some", pattern))
    (modes,) = Modes.seen
    assert ("drop" in modes) == active
    out = s.net(s.w, s.data.train.x(torch.arange(6)), train=modes)
    assert torch.equal(out["drop"], out["body"]) != active
