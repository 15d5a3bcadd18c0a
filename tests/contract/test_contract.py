"""What every registered method, recipe and term must do; see `cases.py` for what is a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path

import pytest
import torch
from cases import (
    ALL,
    CLIENTS,
    OPT,
    ROUNDS,
    expression,
    federation,
    method,
    need,
    program,
    straight,
)

from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Down, Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.round import Round, send
from fedloom.core.site import Visit
from fedloom.core.term import Term
from fedloom.core.tree import State, clone_state
from fedloom.core.wire import pack, unpack
from fedloom.data import FederatedData
from fedloom.engines.inline import Inline
from fedloom.engines.pool import Pool
from fedloom.launch.start import go_on, start
from fedloom.methods import describe, parse_method
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.watcher import Watcher
from helpers import Played, digest, digits, finite, play, run

MOMENTS = Ask(("received", "trained", "adapted"), ("test", "val"))
every = pytest.mark.parametrize("name", ALL)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def carried(state: State) -> State:
    """Over the wire: bytes and nothing else."""
    return unpack(pack(state))


def training(prog: Program) -> list[Plan]:
    return [p for p in prog.schedule(ROUNDS) if p.kind == "train"]


def assert_sound(name: str, played: Played) -> None:
    """Every number that was kept, sent or logged is finite."""
    assert finite(played.server), name
    for answer in played.answers:
        assert finite(answer.up.state), f"{name}: upload of client {answer.cid}, {answer.plan}"
        assert finite(answer.kept), f"{name}: kept by client {answer.cid}, {answer.plan}"
        assert all(map(isfinite, answer.up.metrics.values())), f"{name}: {answer.up.metrics}"


def visits(prog: Program, data: FederatedData, played: Played, ids: range) -> Iterator[Visit]:
    """All clients after the last training round, with what they then hold."""
    r = Round(prog, training(prog)[-1], played.server)
    for cid in ids:
        own = played.clients.get(cid)
        yield Visit(prog, cid, data.client(cid), send(r, cid), own)


# ------------------------------------------------------------------ it runs and it learns


@every
def test_one_round_runs_and_moves_something(name: str) -> None:
    prog = program(name)
    up_to_first = prog.schedule(1)[: -1 if prog.method.adapt else None]
    played = play(prog, federation(), up_to_first)
    assert_sound(name, played)
    trained = [a for a in played.answers if a.plan.kind == "train"]
    assert [a.cid for a in trained] == list(range(CLIENTS))
    assert all("loss" in a.up.metrics for a in trained)
    initial = prog.nets[0].initial
    for answer in trained:
        held = {**answer.kept.get(METHOD, {}), **answer.up.state.get(METHOD, {})}
        assert held.keys() <= initial.keys()
        assert any(not torch.equal(v, initial[k]) for k, v in held.items()), f"client {answer.cid}"


@every
def test_what_clients_receive_predicts_better_after_a_few_rounds(name: str) -> None:
    """Cross-entropy on the training rows, before the first round and after the last: the loop,
    what is kept and what is aggregated must all do their part."""
    prog, data = program(name), federation()
    rounds = need(name).rounds
    plans = prog.schedule(rounds)
    first = next(i for i, p in enumerate(plans) if p.kind == "train")
    before = play(prog, data, plans[:first])
    after = play(prog, data, plans[first : first + rounds], before)
    ask = Ask(("received",), ("train",))

    def mean_nll(played: Played) -> float:
        seen = visits(prog, data, played, range(CLIENTS))
        return sum(evaluate(v, ask)[0].metrics["nll"] for v in seen) / CLIENTS

    assert mean_nll(after) < 0.95 * mean_nll(before)


# ------------------------------------------------------------------ the same bytes, however run


@every
def test_resumed_equals_straight(name: str) -> None:
    """Stopped half-way, everything as bytes, and gone on with by objects made anew."""
    plans = program(name).schedule(ROUNDS)
    half = len(plans) // 2
    stopped = play(program(name), federation(), plans[:half])
    own = {cid: carried(state) for cid, state in stopped.clients.items()}
    resumed = play(program(name), federation(), plans[half:], Played(carried(stopped.server), own))
    assert resumed.digest == straight(name).digest


@every
def test_wire_equals_in_process(name: str) -> None:
    """Every message and every kept state as bytes; what aliases in one process cannot here."""
    assert run(program(name), federation(), ROUNDS, carry=carried).digest == straight(name).digest


@every
def test_order_evaluation_and_torchs_own_stream_do_not_matter(name: str) -> None:
    def disturb(visit: Visit) -> None:
        torch.manual_seed(visit.cid)
        torch.rand(7)
        if visit.down.plan.kind == "train":
            evaluate(visit, MOMENTS)

    turned = run(
        program(name), federation(), ROUNDS, order=lambda ids: ids[::-1], before_visit=disturb
    )
    assert turned.digest == straight(name).digest


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(workers=2)
    yield pool
    pool.close()


def experiment(name: str, out: Path | None = None) -> Experiment:
    config = RunConfig(
        rounds=2,
        method=expression(name),
        model=need(name).model,
        newcomers=1,
        participation=0.5,
        checkpoint_every=1,
        out=None if out is None else str(out),
    )
    return Experiment.build(config, method(name), federation())


@every
def test_inline_and_pool_agree(name: str, pool: Pool) -> None:
    inline, pooled = (start(experiment(name), engine) for engine in (Inline(), pool))
    assert pooled.summary.state_sha256 == inline.summary.state_sha256
    scores = [[r["scores"] for r in result.records] for result in (inline, pooled)]
    assert scores[0] == scores[1]


class Stop(Exception):
    pass


class StopAfter(Watcher):
    """A watcher that ends the run, as Ctrl-C would, once so many plans are done."""

    def __init__(self, plans: int) -> None:
        self.left = plans

    def step(self, record: object) -> None:
        self.left -= 1
        if not self.left:
            raise Stop

    def ended(self, summary: object) -> None:
        raise AssertionError("the run was to be stopped")


@every
def test_resumed_from_the_run_folder_equals_straight(name: str, tmp_path: Path) -> None:
    whole = start(experiment(name), Inline())
    planned = experiment(name, tmp_path / "run")
    with pytest.raises(Stop):
        start(planned, Inline(), [StopAfter(len(planned.plans) // 2)])
    resumed = go_on(experiment(name, tmp_path / "run"), Inline())
    assert resumed.summary.state_sha256 == whole.summary.state_sha256
    assert resumed.accuracy == whole.accuracy


# ------------------------------------------------------------------ what must not change


@every
def test_evaluation_changes_no_state(name: str) -> None:
    prog = program(name)
    played = straight(name)
    before = digest(played.server), played.digest
    for visit in visits(prog, federation(), played, range(CLIENTS)):
        held = digest(visit.down.state), digest(visit.own)
        scores = evaluate(visit, MOMENTS)
        assert set(scores) == {f"{m}/{s}" for m in MOMENTS.moments for s in MOMENTS.splits}
        assert (digest(visit.down.state), digest(visit.own)) == held
        assert evaluate(visit, MOMENTS) == scores
    assert (digest(played.server), played.digest) == before


@every
def test_messages_and_old_states_are_never_modified(name: str) -> None:
    """Whoever trains or averages works on copies: all that existed before a round is as it was."""
    prog, data, played = program(name), federation(), Played({}, {})
    for plan in prog.schedule(ROUNDS):
        before = played if played.server else None
        copies = clone_state(played.server), {c: clone_state(s) for c, s in played.clients.items()}
        seen: list[tuple[State, str]] = []
        played = play(
            prog,
            data,
            [plan],
            before,
            before_visit=lambda v, seen=seen: seen.append((v.down.state, digest(v.down.state))),
        )
        assert [digest(state) for state, _ in seen] == [old for _, old in seen], str(plan)
        if before is not None:
            assert before.digest == Played(*copies).digest, str(plan)
    assert played.digest == straight(name).digest


# ------------------------------------------------------------------ what must not leave


def telling(tensor: torch.Tensor) -> bool:
    """Enough different values that equality is no coincidence (zeros, counts, initial ones)."""
    return tensor.is_floating_point() and tensor.numel() >= 4 and len(tensor.unique()) > 2


@every
def test_personal_tensors_never_leave(name: str) -> None:
    """By key, and by value: nothing that was sent is what the client keeps, but for copies that
    are the method's design (`Need.copies`)."""
    prog = program(name)
    for answer in straight(name).answers:
        where = f"client {answer.cid}, {answer.plan}"
        assert answer.up.state.get(METHOD, {}).keys() <= prog.shared(answer.cid), where
        assert answer.up.state.keys() <= prog.writers().keys(), where
        kept = {
            f"{part}/{k}": v
            for part, tree in answer.kept.items()
            if part not in need(name).copies
            for k, v in tree.items()
            if telling(v)
        }
        for part, tree in answer.up.state.items():
            for k, sent in tree.items():
                equal = [at for at, v in kept.items() if v.shape == sent.shape and v.equal(sent)]
                assert not equal, f"{where}: {part}/{k} in the upload is {equal[0]}"


# ------------------------------------------------------------------ awkward federations


AWKWARD = {
    "a client with one sample": (((3,), 1), ((0, 1, 2, 3), 17), ((4, 5, 6), 9)),
    # Nobody holds class 9, two clients hold a single class.
    "clients lacking classes": (((0,), 12), ((1,), 9), ((2, 3, 4, 5, 6, 7, 8), 14)),
}


@every
@pytest.mark.parametrize("norm", ["as_it_is", "batch_norm"])
@pytest.mark.parametrize("case", AWKWARD)
def test_awkward_federations(name: str, case: str, norm: str) -> None:
    model = need(name).normed if norm == "batch_norm" else ""
    prog, data = program(name, clients=3, model=model), digits(*AWKWARD[case], held_out=3)
    played = run(prog, data, rounds=2)
    assert_sound(name, played)
    for visit in visits(prog, data, played, range(3)):
        scores = evaluate(visit, MOMENTS)
        assert all(isfinite(v) for score in scores.values() for v in score.values())


@every
def test_half_participation_with_batch_norm(name: str) -> None:
    """Two of four clients a round, one of them with a single row: the same bytes over the wire,
    and whoever was never there keeps nothing."""
    data = digits(((0, 1, 2), 13), ((3,), 1), ((4, 5, 6), 9), ((7, 8, 9), 11), held_out=3)
    model = need(name).normed
    progs = [program(name, model=model) for _ in range(2)]
    plans = training(progs[0])
    special = [p for p in progs[0].schedule(ROUNDS) if p.kind == "special" and p.t == 0]
    played = play(progs[0], data, [*special, *plans], participation=0.5)
    assert_sound(name, played)
    cohorts = [progs[0].cohort(plan, 0.5) for plan in plans]
    assert all(len(c) == CLIENTS // 2 for c in cohorts)
    everybody = range(CLIENTS) if special else {cid for c in cohorts for cid in c}
    assert set(played.clients) == set(everybody)
    over_wire = play(progs[1], data, [*special, *plans], participation=0.5, carry=carried)
    assert over_wire.digest == played.digest


@every
def test_a_newcomer_joins(name: str) -> None:
    """An id that no round has seen: it is sent something, tested as received, trained and
    adapted, and may take part from then on."""
    prog, data, played = program(name), federation(), straight(name)
    (visit,) = visits(prog, data, played, range(CLIENTS, CLIENTS + 1))
    scores = evaluate(visit, MOMENTS)
    assert set(scores) == {f"{m}/{s}" for m in MOMENTS.moments for s in MOMENTS.splits}
    assert all(isfinite(v) for score in scores.values() for v in score.values())
    assert finite(visit.down.state)
    assert digest(played.server) == digest(straight(name).server)
    joined = Down(visit.down.plan, carried(visit.down.state))
    assert evaluate(replace(visit, down=joined), MOMENTS) == scores


# ------------------------------------------------------------------ as text


def halved(part: Term) -> Term:
    """The same part with every real hyper-parameter at half its value."""
    said = {f.name: v / 2 for f in fields(part) if isinstance(v := getattr(part, f.name), float)}
    return replace(part, **said)


@every
@pytest.mark.parametrize("full", [False, True])
def test_describe_and_parse_give_the_method_back(name: str, full: bool) -> None:
    made = parse_method(expression(name))
    assert parse_method(describe(made, full)) == made
    terms = tuple(map(halved, made.terms))
    other = replace(halved(made), terms=terms)
    assert isinstance(other, Method)
    assert parse_method(describe(other, full)) == other
    assert (other == made) == (describe(other, full) == describe(made, full))


def test_the_common_ground_is_what_it_says() -> None:
    """The cases would prove less if all clients held all classes or the batches were whole."""
    data = federation()
    counts = data.counts("train")
    assert len(data) == CLIENTS + 1
    assert (counts == 0).any(axis=1).all()
    assert (counts.sum(axis=1) % OPT.batch != 0).any()
