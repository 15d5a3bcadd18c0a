"""Blocks of clients give the reference engine's bytes, and only go where a trial allows it."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.batched_layers import (
    MOST_ROWS_OF_MEAN,
    has_batched_form,
    means_of_losses,
    side_by_side,
)
from fedloom.core.block import Block, has_rows, trains_together
from fedloom.core.client import client, clients_together
from fedloom.core.data import Federation
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.evaluate_together import evaluate_together
from fedloom.core.message import Up
from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Site, Visit
from fedloom.core.task import Classification
from fedloom.core.term import AtOnce, Batch, Term, goes_number_by_number
from fedloom.core.together import NotInCommon, Stacks
from fedloom.core.tree import State, Tree
from fedloom.engines import Job, make_engine
from fedloom.engines import blocks as engine_blocks
from fedloom.engines import trials as engine_trials
from fedloom.engines.blocks import SCORING, TRAINING, Blocks
from fedloom.engines.inline import Inline
from fedloom.engines.vectorized import Vectorized
from fedloom.errors import FedloomError, HookError, LeakError, TrainingError
from fedloom.launch.start import start
from fedloom.methods import parse_method, register
from fedloom.methods.dbe import MeanRegularization
from fedloom.methods.fedavg import FedAvg
from fedloom.models.gaussian import Gaussian
from fedloom.models.layers import Translation
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from helpers import digest, digits, outcome

# Nine equal clients (a block of eight and one left over), two unlike ones.
HOLDINGS = (*(((i, (i + 1) % 10, (i + 2) % 10), 18) for i in range(9)), ((3, 4), 25), ((5,), 1))
ALONE = {"dualfed", "fedbn", "apfl", "apple", "pfedme"}
"""Most of their network draws or normalises, or their step is their own: they are not tried."""
REFUSED = {"fedpac"}
"""Its `local` computes with what each client has for itself."""
JOIN = {
    *("fedavg", "fedper", "fedrep", "fedbabu", "lg_fedavg", "fedavg_ft", "local"),
    *("dbe", "prbm", "mean_regularization", "scaffold", "fedprox", "fedcm", "ditto", "fedcr"),
}
ASK = Ask(("trained",), ("test", "val"))


@pytest.fixture(autouse=True)
def one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a second round is really computed in blocks."""
    monkeypatch.setattr(engine_trials, "ROUNDS_TRIED", 1)


def joinable(visit: Visit) -> bool:
    """May this client be in a block?"""
    plan = visit.down.plan
    return has_rows(visit.data) and trains_together(
        visit.program, visit.cid, plan.kind, visit.device
    )


class Always(Vectorized):
    """No time passes, so that only bytes decide."""

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        super().open(program, data, folder)
        self.reports: list[str] = []
        self.blocks = Blocks(clock=lambda: 0.0, report=self.reports.append)


def build(method: str | Method, **settings: Any) -> Experiment:
    """Eleven clients of digits, two rounds."""
    config = RunConfig.checked({"rounds": 2, "model": "mlp", **settings})
    parsed = parse_method(method) if isinstance(method, str) else method
    return Experiment.build(config, parsed, digits(*HOLDINGS))


def visits(
    method: str | Method = "fedavg", ids: Sequence[int] = range(8), **how: Any
) -> list[Visit]:
    """First visits of some clients."""
    experiment = build(method, **how)
    program, plan = experiment.program, experiment.plans[0]
    r = Round(program, plan, initial_server(program), list(ids))
    return [Visit(program, i, experiment.data.client(i), send(r, i)) for i in ids]


def comparable(answers: Sequence[tuple[Up, State]]) -> list[tuple[Any, ...]]:
    """Answers in a form that can be compared."""
    return [(digest(up.state), up.n, dict(up.metrics), digest(kept)) for up, kept in answers]


def alone(some: Sequence[Visit], ask: Ask | None = None) -> list[tuple[Any, ...]]:
    return comparable([client(visit, ask) for visit in some])


def computing(compute: Callable[..., Any], **how: Any) -> Blocks:
    """Blocks that are trained by this function; no time passes, so that only bytes decide."""
    blocks = Blocks(**{"clock": lambda: 0.0, **how})
    blocks.training.work = replace(TRAINING, together=compute)
    return blocks


def forced(compute: Callable[..., Any] = clients_together, **how: Any) -> Blocks:
    """Blocks whose trials all went well."""
    blocks = computing(compute, **how)
    blocks.training._worth_trying = lambda kind, t: False  # type: ignore[method-assign]
    blocks.training.verdicts = _Yes()
    return blocks


class _Yes(dict[Any, bool]):
    def get(self, key: Any, default: Any = None) -> bool:
        return True


# ------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize("name", list(register))
def test_every_method_gives_the_reference_bytes(name: str) -> None:
    """Round one is the trial, round two is together where the bits agreed; who cannot join is not
    even tried, or refused."""
    written = name if isinstance(register[name](), Method) else f"fedavg + {name}"
    model = "mlp(norm=batch)" if name == "fedbn" else "mlp"
    experiment, engine = build(written, model=model), Always()
    assert outcome(start(experiment, engine)) == outcome(start(experiment, Inline()))
    verdicts = list(engine.blocks.training.verdicts.values())
    assert bool(verdicts) or name not in JOIN
    assert not (verdicts and name in ALONE)
    assert not (any(verdicts) and name in REFUSED)
    if torch.backends.mkl.is_available() and name in JOIN:  # other products, other bits
        assert all(verdicts)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5}),
        ("fedavg", {"epochs": 3, "decay": 0.5, "protocol": "fedpac"}),
        ("fedrep(adapt_epochs=2)", {"clip": 0.1, "newcomers": 1}),
        ("fedper(adapt_epochs=1)", {"participation": 0.8, "batch_size": 7}),
        ("fedavg + dbe", {"participation": 0.8, "rounds": 4, "epochs": 2}),
        ("fedrep + dbe(mu=0.3, half=true)", {"rounds": 3}),
        ("ditto + dbe(mean=running)", {"rounds": 3}),
        ("fedavg_ft(adapt_epochs=2)", {"protocol": "fedcr"}),
        ("local", {"model": "mlp(hidden=[8]) | mlp(hidden=[6, 5])"}),
        ("fedavg", {"augment": "flip"}),
    ],
)
def test_settings_give_the_reference_bytes(method: str, settings: dict[str, Any]) -> None:
    experiment = build(method, **settings)
    assert outcome(start(experiment, Always())) == outcome(start(experiment, Inline()))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "weight_decay": 0.01},
        {"optimizer": "rmsprop", "momentum": 0.5},
        {"momentum": 0.9, "keep_state": True},
    ],
)
def test_other_optimisers_go_one_by_one(settings: dict[str, Any]) -> None:
    """Their roots promise no equal bytes in a block, and kept state is one client's."""
    experiment, engine = build("fedper(adapt_epochs=1)", **settings), Always()
    assert outcome(start(experiment, engine)) == outcome(start(experiment, Inline()))
    assert not engine.blocks.training.verdicts


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
@pytest.mark.parametrize(
    "settings",
    [{}, {"clip": 0.5, "momentum": 0.9, "weight_decay": 0.01, "decay": 0.5}, {"batch_size": 64}],
)
def test_a_small_dense_network_agrees_and_goes_together(settings: dict[str, Any]) -> None:
    """The whole point: with MKL the batched products have the bits of the single ones."""
    engine = Always()
    start(build("fedrep(adapt_epochs=1)", **settings), engine)
    tried: Any = engine.blocks.training.verdicts
    assert {common[0] for common, _ in tried} == {"train", "adapt"}
    assert all(engine.blocks.training.verdicts.values())


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
def test_a_block_is_as_if_every_member_had_been_trained_alone() -> None:
    """Two phases, the first with a frozen body; what hooks can read afterwards included."""
    one, other = ([Site(v) for v in visits("fedrep")] for _ in range(2))
    method = one[0].method
    for site in one:
        method.local(site)
    block = Block(other)
    method.local(block)
    block.hand_out()
    for a, b in zip(one, other, strict=True):
        assert digest({"model": a.w}) == digest({"model": b.w})
        assert (a.travel, a.steps, a._fits) == (b.travel, b.steps, b._fits)
        assert a.mean_loss == b.mean_loss


def test_answers_come_in_the_order_of_visits() -> None:
    """Blocks of eight out of nine equal clients, between unlike ones."""
    some = visits(ids=[9, 4, 3, 10, 0, 1, 2, 5, 6, 7, 8])
    blocks = Blocks(clock=lambda: 0.0)
    for _ in range(2):
        assert comparable(blocks.answer(some, ASK)) == alone(some, ASK)
    assert [size for _, size in blocks.training.verdicts] == [8]


@dataclass(frozen=True, kw_only=True)
class Drawing(Method):
    """Draws from torch's default stream before and after training."""

    name: ClassVar[str] = "drawing"

    def receive(self, s: Site) -> Any:
        torch.rand(1 + s.cid)
        return super().receive(s)

    def finish(self, s: Site) -> State:
        return {**super().finish(s), self.name: {"drawn": torch.rand(3)}}


def test_every_client_goes_on_in_its_own_stream() -> None:
    some, before = visits(Drawing()), torch.get_rng_state()
    drawn = [up.state["drawing"]["drawn"] for up, _ in clients_together(some)]
    assert torch.equal(torch.get_rng_state(), before)
    for visit, expected in zip(some, drawn, strict=True):
        assert torch.equal(client(visit)[0].state["drawing"]["drawn"], expected)


@dataclass(frozen=True, kw_only=True)
class Whimsical(Method):
    """Hooks that no batched form could have: they draw, branch on data, count, and write in place
    into what they keep."""

    name: ClassVar[str] = "whimsical"

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: {"seen": torch.zeros(10)}}

    def inputs(self, b: Batch, s: Site) -> None:
        b.x = b.x + 0.1 * torch.rand(b.x.shape, generator=s.gen(("noise", s.steps)))

    def loss(self, b: Batch, s: Site) -> Tensor:
        s.own[self.name]["seen"] += b.y.bincount(minlength=10)
        s.memo["turns"] = s.memo.get("turns", 0) + 1
        loss = super().loss(b, s) * torch.rand(())
        if float(loss.detach()) > 0.5 or s.memo["turns"] > 1:
            loss = loss + 0.1 * s.w["head.weight"].norm()
        return loss

    def grads(self, g: Tree, s: Site) -> Tree:
        return {k: v / (1 + v.norm()) if s.cid % 2 else v for k, v in g.items()}


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
def test_hooks_may_do_whatever_they_do_alone() -> None:
    some = visits(Whimsical(), epochs=2)
    assert joinable(some[0])
    assert comparable(clients_together(some, ASK)) == alone(some, ASK)


@dataclass(frozen=True, kw_only=True)
class Peeking(Method):
    """Its `local` does what cannot be done once for all clients."""

    name: ClassVar[str] = "peeking"
    does: str = "reads"

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: s.start}

    def local(self, s: Site) -> None:
        if self.does == "reads":
            s.memo["rows"] = len(s.data.train)
        elif self.does == "writes":
            s.opt = replace(s.opt, epochs=2)
        elif self.does == "computes":
            s.own[self.name] = {k: v.sign() for k, v in s.own[self.name].items()}
        elif self.does == "scales":
            s.own[self.name]["head.bias"].mul_(2)
        else:
            torch.rand(1)
        super().local(s)


@pytest.mark.parametrize("does", ["reads", "writes", "computes", "scales", "draws"])
def test_what_local_may_not_do_for_all_is_refused(does: str) -> None:
    some, reports = visits(Peeking(does=does)), []
    blocks = Blocks(clock=lambda: 0.0, report=reports.append)
    for _ in range(2):
        assert comparable(blocks.answer(some, None)) == alone(some)
    assert list(blocks.training.verdicts.values()) == [False]
    assert "refused: it cannot be batched" in reports[0]


def test_a_second_model_gets_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto, two rounds: v_i is trained from what this client kept, and w as FedAvg's."""
    some = visits("ditto(lam=0.5, personal_epochs=2)")
    first = [client(visit) for visit in some]
    again = [replace(v, own=kept) for v, (_, kept) in zip(some, first, strict=True)]
    monkeypatch.setattr(Site, "fit", refusing(Site.fit))
    together = clients_together(again)
    monkeypatch.undo()
    assert comparable(together) == alone(again)


@dataclass(frozen=True, kw_only=True)
class Twofold(Method):
    """Its second fit reads what its first one left, and its inputs count steps and double rows."""

    name: ClassVar[str] = "twofold"

    def client_init(self, s: Site) -> State:
        return {**super().client_init(s), self.name: s.start}

    def local(self, s: Site) -> None:
        s.own[self.name] = s.fit(self.phases[0], s.own[self.name])
        super().local(s)

    def inputs(self, b: Batch, s: Site) -> None:
        moved = s.w["head.bias"].detach().mean() + s.own[self.name]["head.bias"].mean()
        b.x = torch.cat([b.x, b.x * (1 + 0.01 * s.steps) + moved])
        b.target = torch.cat([b.target, b.target])


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
def test_hooks_see_what_is_new_since_the_last_step() -> None:
    some = visits(Twofold(), epochs=2)
    assert joinable(some[0])
    assert comparable(clients_together(some)) == alone(some)


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_layers_without_bias_are_clipped_alike(clip: float) -> None:
    """The norm of a gradient depends on how it lies in memory: a clip that does nothing in a trial
    would not show it."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32, bias=False), nn.ReLU())
    net = Net((1, 8, 8), body=body, head=nn.Linear(32, 10, bias=False))
    program = Program(build("fedavg", clip=clip).program.method, net, 11)
    first = visits()
    r = Round(program, first[0].down.plan, initial_server(program), list(range(8)))
    some = [replace(v, program=program, down=send(r, v.cid)) for v in first]
    assert joinable(some[0])
    assert comparable(clients_together(some)) == alone(some)


def test_layers_with_hooks_are_run_by_themselves() -> None:
    layer = nn.Linear(6, 4)
    assert has_batched_form(layer)
    layer.register_forward_pre_hook(lambda module, given: None)
    assert not has_batched_form(nn.Sequential(layer))


@dataclass(frozen=True, kw_only=True)
class LaterOtherwise(Method):
    """From its second round on it asks for what blocks cannot give."""

    name: ClassVar[str] = "later_otherwise"

    def local(self, s: Site) -> None:
        if s.plan.t > 1:
            s.memo["rows"] = len(s.data.train)
        super().local(s)


def test_a_second_round_has_its_trial_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a block that fails after its trials is not computed again."""
    monkeypatch.setattr(engine_trials, "ROUNDS_TRIED", 2)
    experiment, engine = build(LaterOtherwise(), rounds=3), Always()
    assert outcome(start(experiment, engine)) == outcome(start(experiment, Inline()))
    training = [report for report in engine.reports if not report.startswith("scores")]
    verdicts = [report.split(", ")[1].split(":")[0] for report in training]
    assert verdicts == ["accepted", "refused"]


@dataclass(frozen=True, kw_only=True)
class Misspelt(Method):
    """Its `finish` has a mistake."""

    name: ClassVar[str] = "misspelt"

    def finish(self, s: Site) -> State:
        return {self.name: s.own["mispelt"]}


def test_a_mistake_after_the_training_names_its_client() -> None:
    with pytest.raises(HookError, match="client 0, round 1"):
        clients_together(visits(Misspelt()))


def refusing(fit: Callable[..., Any]) -> Callable[..., Any]:
    """`Site.fit` of blocks only."""

    def checked(site: Site, *args: Any, **how: Any) -> Any:
        assert isinstance(site, Block)
        return fit(site, *args, **how)

    return checked


# ------------------------------------------------------------------ really together


def test_a_block_runs_the_net_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """18 rows in batches of ten are two steps: for eight clients two passes, not sixteen."""
    some, stages = visits(), []
    run = Net._in_mode
    monkeypatch.setattr(Net, "_in_mode", lambda *a, **k: stages.append(1) or run(*a, **k))
    forced().answer(some, None)
    assert len(stages) == 2 * 2  # body and head
    alone(some)
    assert len(stages) == 2 * 2 + 16 * 2


def test_the_engine_makes_one_job_per_client_and_few_at_a_time() -> None:
    """Jobs may be read from disk; each is asked for once, a block's worth before its answers."""
    experiment, engine = build("fedavg"), Vectorized()
    engine.open(experiment.program, experiment.data)
    program, plan = experiment.program, experiment.plans[0]
    r = Round(program, plan, initial_server(program), list(range(11)))
    requested: list[int] = []

    def job(cid: int) -> Job:
        requested.append(cid)
        return Job(cid, send(r, cid), None)

    answers = engine.clients(range(11), job, None)
    assert next(answers)[0] == 10  # the one of a single row comes first
    assert requested == [10]
    assert sorted(cid for cid, *_ in answers) == list(range(10))
    assert sorted(requested) == list(range(11))


# ------------------------------------------------------------------ the trial


class Counted:
    """`clients_together`, with one bit changed or not, and how often it was asked: a trial asks
    twice, for answers and for gradients."""

    def __init__(self, bit: bool = False) -> None:
        self.bit, self.blocks = bit, 0

    def __call__(self, some: Sequence[Visit], ask: Any, watch: Callable[[], None]) -> Any:
        self.blocks += len(some) == 8
        watch()
        answers = [client(visit, ask) for visit in some]
        if self.bit:
            up, kept = answers[-1]
            bias = {**up.state["model"], **kept.get("model", {})}["head.bias"]
            bias[-1] = torch.nextafter(bias[-1], torch.tensor(9.0))
        return answers


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_one_bit_of_one_client_is_enough_to_be_left_alone(method: str) -> None:
    """In what it sends, or with fedper in what it keeps."""
    compute, some, reports = Counted(bit=True), visits(method), []
    blocks = computing(compute, report=reports.append)
    for _ in range(3):
        assert comparable(blocks.answer(some, ASK)) == alone(some, ASK)
    assert (compute.blocks, list(blocks.training.verdicts.values())) == (1, [False])
    (report,) = reports
    assert report.startswith("8 clients of 18 rows as one computation, refused: its bytes")


def test_agreeing_bytes_are_trusted_from_then_on() -> None:
    compute, some = Counted(), visits()
    blocks = computing(compute)
    for _ in range(3):
        assert comparable(blocks.answer(some, ASK)) == alone(some, ASK)
    assert (compute.blocks, list(blocks.training.verdicts.values())) == (2 + 2, [True])


def test_gradients_that_hardly_move_a_weight_are_compared_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers that agree only because weights swallow the steps say nothing of the next ones."""
    apply = Site.apply

    def otherwise(some: Sequence[Visit], *_: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(Site, "apply", lambda s, g: apply(s, {k: v * 1.001 for k, v in g.items()}))
            return [client(visit) for visit in some]

    some = visits(lr=1e-12)
    assert comparable(otherwise(some)) == alone(some)
    blocks = computing(otherwise)
    blocks.answer(some, None)
    assert list(blocks.training.verdicts.values()) == [False]


def test_the_outcome_of_a_trial_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedloom"):
        computing(Counted()).answer(visits(), None)
    assert "8 clients of 18 rows as one computation, accepted: faster, with the" in caplog.text


def test_a_block_that_twice_takes_longer_is_given_up_and_left_alone() -> None:
    """A second passes at every look at the clock: one for the clients one by one, so that a block
    has 1 / 1.1 s, and is over time at its first step. Once could be a pause."""
    compute, some, seconds = Counted(), visits(), count()
    blocks = computing(compute, clock=lambda: float(next(seconds)))
    for _ in range(4):
        assert comparable(blocks.answer(some, None)) == alone(some)
    assert (compute.blocks, list(blocks.training.verdicts.values())) == (2, [False])


def test_a_block_that_cannot_be_computed_is_left_alone() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("vmap: random operation")

    some, reports = visits(), []
    blocks = computing(broken, report=reports.append)
    assert comparable(blocks.answer(some, None)) == alone(some)
    assert list(blocks.training.verdicts.values()) == [False]
    assert "refused: it cannot be batched (RuntimeError: vmap: random operation)" in reports[0]
    again = forced(broken, report=reports.append)
    assert comparable(again.answer(some, None)) == alone(some)
    assert "could not be computed as one (RuntimeError: vmap" in reports[1]


@pytest.mark.parametrize("blocks_of", [computing, forced])
def test_a_mistake_in_the_program_is_not_taken_for_a_block_that_cannot_be_computed(
    blocks_of: Callable[..., Blocks],
) -> None:
    def mistaken(*_: Any) -> Any:
        raise KeyError("no such stage")

    with pytest.raises(KeyError, match="no such stage"):
        blocks_of(mistaken).answer(visits(), None)


def test_after_three_failures_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_blocks, "SIZES", (6, 5, 4, 3, 2))
    compute, some = Counted(bit=True), visits()
    blocks = computing(compute)
    for n in (2, 3, 4, 5, 6):
        assert comparable(blocks.answer(some[:n], None)) == alone(some[:n])
    assert [size for _, size in blocks.training.verdicts] == [2, 3, 4]


def test_models_too_large_to_hold_side_by_side_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of 18 rows has 18 * 64 inputs and 6570 weights."""
    monkeypatch.setattr(engine_blocks, "MOST_NUMBERS", 8 * (18 * 64 + 6570) - 1)
    blocks = Blocks(clock=lambda: 0.0)
    blocks.answer(visits(), None)
    assert not blocks.training.verdicts


# ------------------------------------------------------------------ scores

RECEIVED = Ask(("received",), ("test", "val"))


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(stage, rows) of every pass through a network's stage."""
    found, run = [], Net._run

    def noted(net: Net, w: Tree, name: str, z: Tensor, train: Any) -> Tensor:
        found.append((name, len(z)))
        return run(net, w, name, z, train)

    monkeypatch.setattr(Net, "_run", noted)
    return found


def trained_visits(method: str, **how: Any) -> list[Visit]:
    """Clients as they are after a round: what they keep is no longer the same for all."""
    before = visits(method, **how)
    states = [client(visit, None)[1] for visit in before]
    return [replace(visit, own=own) for visit, own in zip(before, states, strict=True)]


@pytest.mark.parametrize(
    ("method", "body", "head"),
    [("fedavg", [48], [48]), ("fedper", [48], [6] * 8), ("lg_fedavg", [6] * 8, [6] * 8)],
)
def test_what_is_the_same_in_all_models_runs_once_over_all_rows(
    method: str, body: list[int], head: list[int], passed: list[tuple[str, int]]
) -> None:
    """Eight clients of six test rows. LG-FedAvg's head is shared, but its input is not."""
    some, ask = trained_visits(method), replace(RECEIVED, splits=("test",))
    _ = some[0].program.net(0).widest_output  # looked up once, by a pass of its own
    passed.clear()
    plain = [evaluate(visit, ask) for visit in some]
    assert {rows for _, rows in passed} == {6}
    passed.clear()
    assert evaluate_together(some, ask) == plain
    assert [rows for stage, rows in passed if stage == "body"] == body
    assert [rows for stage, rows in passed if stage == "head"] == head


@pytest.mark.parametrize("protocol", ["fedloom(moment=received)", "fedbr", "fedpac"])
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedrod", "knnper", "fedem"])
def test_scores_are_the_reference_engines(method: str, protocol: str) -> None:
    """Of models with personal parts, several heads, stored neighbours and several components."""
    experiment, engine = build(method, protocol=protocol, rounds=3), Always()
    assert outcome(start(experiment, engine)) == outcome(start(experiment, Inline()))


def test_scores_go_together_once_a_trial_allowed_it() -> None:
    some, blocks = trained_visits("fedper"), Blocks(clock=lambda: 0.0)
    asked = []

    def noted(*given: Any) -> Any:
        asked.append(len(given[0]))
        return evaluate_together(*given)

    blocks.scoring.work = replace(SCORING, together=noted, alone=evaluate)
    plain = [evaluate(visit, RECEIVED) for visit in some]
    assert blocks.evaluate(some, RECEIVED) == plain
    blocks.scoring.work = replace(blocks.scoring.work, alone=None)  # is not called again
    assert blocks.evaluate(some, RECEIVED) == plain
    assert asked == [2, 8, 8]


def test_one_digit_of_one_score_is_enough_to_score_alone() -> None:
    some, reports = trained_visits("fedavg"), []
    blocks = Blocks(clock=lambda: 0.0, report=reports.append)

    def other(*given: Any) -> Any:
        scores = evaluate_together(*given)
        nll = math.nextafter(scores[-1][0].metrics["nll"], 9.0)
        changed = replace(scores[-1][0], metrics={**scores[-1][0].metrics, "nll": nll})
        return [*scores[:-1], (changed, *scores[-1][1:])]

    blocks.scoring.work = replace(SCORING, together=other)
    for _ in range(2):
        assert blocks.evaluate(some, RECEIVED) == [evaluate(visit, RECEIVED) for visit in some]
    assert list(blocks.scoring.verdicts.values()) == [False]
    assert reports[0].startswith("scores of 8 clients of 18 rows as one computation, refused")


@pytest.mark.parametrize(
    ("ask", "tried"),
    [(RECEIVED, True), (ASK, False), (replace(RECEIVED, shared=True), False)],
)
def test_only_models_that_are_there_are_scored_together(ask: Ask, tried: bool) -> None:
    """Those that are trained first are each client's work, and shared tests are not its rows."""
    some, blocks = visits(), Blocks(clock=lambda: 0.0)
    blocks.evaluate(some, ask)
    assert bool(blocks.scoring.verdicts) == tried


def test_clients_of_many_rows_are_scored_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over 32 rows gains nothing beside others; these have six to test on."""
    monkeypatch.setattr(engine_blocks, "SMALL_CLIENT", 6)
    blocks = Blocks(clock=lambda: 0.0)
    blocks.evaluate(visits(), replace(RECEIVED, splits=("test",)))
    assert not blocks.scoring.verdicts


def test_layers_that_could_tell_a_rows_place_run_client_by_client(
    passed: list[tuple[str, int]],
) -> None:
    """The last numbers of a sigmoid's input, which fill no vector register, go through another
    one."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid())
    net = Net((1, 8, 8), body=body, head=nn.Linear(8, 10))
    program, down = Program(FedAvg(), net, 11), {"model": net.tree()}
    some = [
        replace(visit, program=program, down=replace(visit.down, state=down)) for visit in visits()
    ]
    _ = program.net(0).widest_output
    passed.clear()
    evaluate_together(some, replace(RECEIVED, splits=("test",)))
    assert {rows for _, rows in passed} == {6}


# ------------------------------------------------------------------ who can join


def test_errors_are_the_reference_engines() -> None:
    experiment = build("fedavg", lr=1e38)
    with pytest.raises(TrainingError) as plain:
        start(experiment, Inline())
    some = visits("fedavg", lr=1e38)
    with pytest.raises(TrainingError) as caught:
        forced().answer(some, None)
    assert str(caught.value) == str(plain.value)
    assert "client 0, round 1" in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "elsewhere"),
    [
        (nn.Dropout(0.5), False),
        (nn.BatchNorm1d(8), False),
        (nn.Sigmoid(), True),
        (type("Own", (nn.ReLU,), {})(), True),
    ],
)
def test_layers_that_could_tell_go_alone(layer: nn.Module, elsewhere: bool) -> None:
    """On a CPU also those whose numbers depend on where in a tensor they stand."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer)
    net = Net((1, 8, 8), body=body, head=nn.Linear(8, 10))
    visit = visits()[0]
    program = Program(visit.program.method, net, 11)
    assert joinable(visit)
    assert not joinable(replace(visit, program=program))
    at = torch.device("meta")
    assert joinable(replace(visit, program=program, device=at)) == elsewhere


class Rewarded(Classification):
    """A task of somebody's own, whose loss is no mean over rows."""

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return super().loss(logits, target, reduction) + logits.norm() / 10


def test_a_task_of_ones_own_is_each_clients_own() -> None:
    """Its loss is asked for every member's batch, so that nothing is assumed of it."""
    experiment = build("fedavg")
    program = Program(experiment.program.method, experiment.program.nets, 11, task=Rewarded())
    some = [replace(visit, program=program) for visit in visits()]
    assert joinable(some[0])
    assert comparable(clients_together(some)) == alone(some)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (5, 6)),
        (nn.Linear(6, 4, bias=False), (5, 6)),
        (nn.Linear(6, 4), (5, 3, 6)),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.LeakyReLU(0.2)), (5, 6)),
        (nn.Flatten(), (5, 2, 3, 4)),
        (nn.Flatten(2, -2), (5, 2, 3, 4, 2)),
        (Translation((6,)), (5, 6)),
        (Gaussian(6, 3), (5, 2, 3)),
        (Gaussian(6, 3, deviation=0.5), (5, 6)),
    ],
)
def test_layers_side_by_side_are_the_layers_one_by_one(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """Eight clients with weights of their own; bits are the trial's matter."""
    assert has_batched_form(layer)
    z = torch.randn(8, *shape)
    own = {name: torch.randn(8, *p.shape) for name, p in layer.named_parameters()}
    single = [
        functional_call(layer, {name: v[i] for name, v in own.items()}, (z[i],)) for i in range(8)
    ]
    stacked = copy.deepcopy(layer)
    for name, value in own.items():
        at, _, leaf = name.rpartition(".")
        stacked.get_submodule(at)._parameters[leaf] = value
    torch.testing.assert_close(side_by_side(stacked, z), torch.stack(single))


def test_clients_that_train_differently_are_no_block() -> None:
    """Unequal rows, or options that a hook replaced."""
    with pytest.raises(ValueError, match="train differently"):
        Block([Site(v) for v in visits(ids=[8, 9])])
    sites = [Site(v) for v in visits(ids=[0, 1])]
    sites[1].opt = replace(sites[1].opt, batch=3)
    with pytest.raises(ValueError, match="train differently"):
        Block(sites)


@pytest.mark.parametrize("rows", range(1, MOST_ROWS_OF_MEAN + 1))
def test_means_of_losses_are_the_losses_of_single_batches(rows: int) -> None:
    """To the last bit, whatever the order in which torch's mean adds up."""
    logits, y = 5 * torch.randn(32, rows, 10), torch.randint(10, (32, rows))
    losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    single = torch.stack([F.cross_entropy(z, own) for z, own in zip(logits, y, strict=True)])
    assert torch.equal(means_of_losses(losses.view(32, rows)), single)


@dataclass(frozen=True)
class _Numbers(Term):
    """Finishes once for all clients, in one of several ways."""

    name: ClassVar[str] = "numbers"
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("finish",)
    way: str = "good"

    def finish(self, s: Site) -> State:
        change = {k: s.w[k] - s.received[k] for k in sorted(s.shared)}
        if self.way == "receives":
            next(iter(s.down["model"].values())).add_(1)
        if self.way == "another's":
            s.own["model"] = change
            return {}
        if self.way == "personal":
            return {self.name: {"head": s.w["head.weight"]}}
        s.own[self.name] = change
        return {self.name: change}


@pytest.mark.parametrize(
    ("method", "hook", "calls"),
    [
        ("fedavg + proximal", "grads", 2),  # 18 rows in batches of ten
        ("fedper + control_variates", "grads", 2),
        ("fedper + control_variates", "finish", 1),
    ],
)
def test_hooks_that_go_number_by_number_are_called_once_for_all(
    method: str, hook: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = visits(method)
    cls, seen = type(some[0].program.method.terms[0]), []
    called = getattr(cls, hook)

    def counted(*given: Any) -> Any:
        seen.append(given)
        return called(*given)

    monkeypatch.setattr(cls, hook, counted)
    clients_together(some)
    assert len(seen) == calls


@pytest.mark.parametrize(
    ("settings", "ask"),
    [
        ({}, ASK),
        ({"compression": "quantize(bits=8)"}, None),
        ({"hostile": "sign_flip(share=0.3)"}, None),
        ({"model": "mlp(frozen='body.1.*')"}, None),
        ({"privacy": "client(clip=1, noise=0.5, delta=1e-5)"}, None),
    ],
    ids=str,
)
def test_where_something_acts_on_single_uploads_each_client_finishes_alone(
    settings: dict[str, Any], ask: Ask | None
) -> None:
    """A trial would see other bytes, and give the block up."""
    some = visits("fedavg", **settings)
    together, one_by_one = clients_together(some, ask), [client(visit, ask) for visit in some]
    assert comparable(together) == comparable(one_by_one)
    assert [up.scores for up, _ in together] == [up.scores for up, _ in one_by_one]


def test_what_goes_up_and_what_is_kept_share_no_memory_after_a_finish_of_all() -> None:
    some = visits(parse_method("fedper") + _Numbers())
    answers = clients_together(some)
    assert comparable(answers) == alone(some)
    memory = [
        v.data_ptr()
        for up, kept in answers
        for state in (up.state, kept)
        for tree in state.values()
        for v in tree.values()
    ]
    assert len(set(memory)) == len(memory)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("receives", "changed what was received"),
        ("another's", "belongs to another part"),
        ("personal", "is a personal tensor"),
    ],
)
def test_a_finish_of_all_clients_is_watched_as_one_of_each(way: str, why: str) -> None:
    some = visits(parse_method("fedper") + _Numbers(way))
    with pytest.raises(FedloomError):  # an engine then asks the clients one by one
        clients_together(some)
    with pytest.raises(LeakError, match=why):
        client(some[0])


@dataclass(frozen=True)
class _Losses(Term):
    """Adds a loss once for all clients, in one of several ways."""

    name: ClassVar[str] = "losses"
    number_by_number: ClassVar[tuple[AtOnce, ...]] = ("loss",)
    way: str = "good"

    def loss(self, b: Batch, s: Site) -> Tensor | float:
        if self.way == "nothing yet":
            return 0.0
        squares = b.out["body"].pow(2)
        if self.way == "all clients mixed":
            return squares.mean()
        if self.way == "another's rows":
            return s.data.train.y.sum() * squares.mean((-2, -1))
        steps = s.memo.get(self.name, 0)
        s.memo[self.name] = steps + 1
        return squares.mean((-2, -1)) * steps


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="other products, other bits")
@pytest.mark.parametrize("way", ["good", "nothing yet"])
def test_a_loss_that_goes_number_by_number_has_the_bytes_of_each_client(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scratch lasts from step to step of a call; and it is called once for all."""
    some = visits(parse_method("fedavg") + _Losses(way), epochs=2)
    called, seen = _Losses.loss, []

    def counted(term: _Losses, b: Batch, s: Site) -> Tensor | float:
        seen.append(len(b.x))
        return called(term, b, s)

    monkeypatch.setattr(_Losses, "loss", counted)
    together = clients_together(some)
    assert seen == [len(some)] * 4  # 18 rows in batches of ten, twice
    assert comparable(together) == alone(some)
    assert [up.metrics for up, _ in together] == [client(visit)[0].metrics for visit in some]


@pytest.mark.parametrize(
    ("way", "why"),
    [("all clients mixed", "no number for each"), ("another's rows", "reads s.data")],
)
def test_a_loss_that_would_mix_clients_is_refused(way: str, why: str) -> None:
    with pytest.raises(FedloomError, match=why):  # an engine then asks the clients one by one
        clients_together(visits(parse_method("fedavg") + _Losses(way)))


def test_dbe_trains_together_once_its_mean_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is called with the clients' stacks in blocks, and client by client in trials."""
    kinds, called = set[type](), MeanRegularization.loss

    def noted(term: MeanRegularization, b: Batch, s: Site) -> Tensor | float:
        kinds.add(type(s))
        return called(term, b, s)

    monkeypatch.setattr(MeanRegularization, "loss", noted)
    engine = Always()
    start(build("fedavg + dbe", rounds=3), engine)
    assert all(engine.blocks.training.verdicts.values())
    assert kinds >= {Stacks, Site}


def test_clients_that_received_unlike_slices_are_no_block() -> None:
    """One that lost what it kept is sent it anew, and stacks of either would lack some clients."""
    some = visits("fedavg")
    down = replace(some[0].down, state={**some[0].down.state, "constant": {"a": torch.ones(2)}})
    some[0] = replace(some[0], down=down)
    sizes = [size for kind, places in _blocks_of(some) for size in [len(places)] if kind]
    assert sizes == []  # seven alike are too few for a block of eight
    block = Block([Site(visit) for visit in some])
    with pytest.raises(NotInCommon, match=r"some clients have no 'constant' in s\.down"):
        Stacks(block).down["constant"]


def _blocks_of(some: Sequence[Visit]) -> list[tuple[Any, list[int]]]:
    blocks = Blocks()
    return list(engine_blocks._blocks(some, [blocks._trained_alike(visit) for visit in some]))


def test_who_overrides_a_hook_speaks_for_it_anew() -> None:
    class Own(_Numbers):
        name: ClassVar[str] = "own_numbers"

        def finish(self, s: Site) -> State:
            return {}

    assert goes_number_by_number(_Numbers(), "finish")
    assert not goes_number_by_number(Own(), "finish")


def test_it_is_an_engine_by_name() -> None:
    assert isinstance(make_engine("vectorized"), Vectorized)
