"""The rules that every method must keep, one function each.

A check takes a `MethodCase` and raises `ContractBroken` with a sentence, or whatever the core
raises, where the rule is broken. The rule itself is the first sentence of its docstring.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from math import isfinite
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.frozen import FROZEN
from fedloom.core.message import Down, Plan
from fedloom.core.net import METHOD
from fedloom.core.program import Program
from fedloom.core.round import Round, send
from fedloom.core.score import ClientScore
from fedloom.core.site import Visit
from fedloom.core.term import Term
from fedloom.core.tree import State, clone_state
from fedloom.data import FederatedData
from fedloom.engines import Engine
from fedloom.engines.inline import Inline
from fedloom.launch.start import go_on, start
from fedloom.methods import describe, parse_method
from fedloom.record import RoundRecord, Summary
from fedloom.runs.config import RunConfig
from fedloom.runs.result import Result
from fedloom.runs.watcher import RunView, Watcher
from fedloom.testing.case import CLIENTS, ROUNDS, ContractBroken, MethodCase, require, training
from fedloom.testing.federations import half_federation, lacking_federation, one_sample_federation
from fedloom.testing.rounds import Played, as_bytes, digest, finite, play
from fedloom.tuning.space import Space

Part = TypeVar("Part", bound=Term)
Check = Callable[[MethodCase], None]

MOMENTS = Ask(("received", "trained", "adapted"), ("test", "val"))
BETTER = 0.95
"""A loss below this share of another is lower, and not by chance."""


# ------------------------------------------------------------------ it runs and it learns


def check_one_round_trains(case: MethodCase) -> None:
    """One round runs, and every client's model moves.

    All that is kept, sent and logged is finite, every client reports its loss, and no client holds
    a tensor that the network does not have.
    """
    program = case.program()
    up_to_first = program.schedule(1)[: -1 if program.adapt else None]
    played = play(program, case.data, up_to_first)
    _require_finite(played)
    trained = [answer for answer in played.answers if answer.plan.kind == "train"]
    require(
        [answer.cid for answer in trained] == list(range(CLIENTS)),
        f"of {CLIENTS} clients {[a.cid for a in trained]} trained in round 1",
    )
    initial = program.nets[0].initial
    for answer in trained:
        where = f"client {answer.cid} in round 1"
        require("loss" in answer.up.metrics, f"{where} reports no loss; does `local` call `s.fit`?")
        held = {**answer.kept.get(METHOD, {}), **answer.up.state.get(METHOD, {})}
        strange = sorted(held.keys() - initial.keys())
        require(not strange, f"{where} holds {strange}, which the network does not have")
        moved = any(not torch.equal(v, initial[k]) for k, v in held.items())
        require(moved, f"{where} neither keeps nor sends a tensor of the model that has changed")


def check_clients_receive_better_models(case: MethodCase) -> None:
    """What clients receive predicts better after a few rounds than at the start.

    Cross-entropy on the training rows, before the first round and after the last: the loop, what
    is kept and what is aggregated must all do their part.
    """
    program, data, rounds = case.program(), case.data, case.rounds_to_learn
    plans = program.schedule(rounds)
    first = next(i for i, plan in enumerate(plans) if plan.kind == "train")
    before = play(program, data, plans[:first])
    after = play(program, data, plans[first : first + rounds], before)
    ask = Ask(("received",), ("train",))

    def mean_loss(played: Played) -> float:
        scores = (evaluate(visit, ask)[0] for visit in _visits(program, data, played))
        return sum(score.metrics["nll"] for score in scores) / CLIENTS

    old, new = mean_loss(before), mean_loss(after)
    require(
        new < BETTER * old,
        f"the training rows' cross-entropy under what clients receive went from {old:.3f} to"
        f" {new:.3f} in {rounds} rounds; if the method is slow by design, give rounds_to_learn",
    )


# ------------------------------------------------------------------ the same bytes, however run


def check_resumed_equals_straight(case: MethodCase) -> None:
    """A run that stops half-way and goes on from its states gives the same bytes.

    Everything is turned into bytes, and the objects are made anew: what a method keeps on itself,
    or in a module, is not there.
    """
    plans = case.program().schedule(ROUNDS)
    half = len(plans) // 2
    stopped = play(case.program(), case.data, plans[:half])
    own = {cid: as_bytes(state) for cid, state in stopped.clients.items()}
    begin = Played(as_bytes(stopped.server), own)
    _require_same(case, play(case.program(), case.data, plans[half:], begin), "resumed half-way")


def check_bytes_equal_objects(case: MethodCase) -> None:
    """Messages that travel as bytes give the same bytes as messages in one process.

    What shares memory in one process cannot do so here.
    """
    program = case.program()
    over_wire = play(program, case.data, program.schedule(ROUNDS), carry=as_bytes)
    _require_same(case, over_wire, "with every message as bytes")


def check_order_and_evaluation_change_nothing(case: MethodCase) -> None:
    """The order of clients, evaluations in between and torch's own random stream change no byte.

    Draw from `s.gen(...)` or `r.gen(...)`, and keep nothing outside the states.
    """

    def disturb(visit: Visit) -> None:
        torch.manual_seed(visit.cid)
        torch.rand(7)
        if visit.down.plan.kind == "train":
            evaluate(visit, MOMENTS)

    program = case.program()
    turned = play(
        program,
        case.data,
        program.schedule(ROUNDS),
        order=lambda ids: ids[::-1],
        before_visit=disturb,
    )
    _require_same(case, turned, "with clients in the other order and evaluations in between")


def check_run_folder_resumes(case: MethodCase) -> None:
    """A run that is stopped and resumed from its folder ends with the same bytes."""
    settings: dict[str, Any] = {"rounds": 2, "participation": 0.5, "checkpoint_every": 1}
    whole = start(case.experiment(**settings), Inline())
    with tempfile.TemporaryDirectory() as scratch:
        planned = case.experiment(f"{scratch}/run", **settings)
        try:
            start(planned, Inline(), [_StopAfter(len(planned.plans) // 2)])
        except _Stopped:
            pass
        else:
            raise ContractBroken("the run did not stop when it was stopped")
        resumed = go_on(case.experiment(f"{scratch}/run", **settings), Inline())
    require(
        resumed.summary.state_sha256 == whole.summary.state_sha256,
        "the states of the resumed run differ from those of the undisturbed run",
    )
    require(
        resumed.accuracy == whole.accuracy,
        f"the resumed run's accuracy is {resumed.accuracy}, the undisturbed run's {whole.accuracy}",
    )


# ------------------------------------------------------------------ what must not change


def check_evaluation_changes_no_state(case: MethodCase) -> None:
    """Evaluating a client changes neither what it holds nor what it was sent.

    A second evaluation gives the same scores.
    """
    program, played = case.program(), case.straight
    before = digest(played.server), played.digest
    for visit in _visits(program, case.data, played):
        held = digest(visit.down.state), digest(visit.own)
        scores = evaluate(visit, MOMENTS)
        _require_complete(scores)
        now = digest(visit.down.state), digest(visit.own)
        require(now == held, f"evaluating client {visit.cid} changed its message or its state")
        again = evaluate(visit, MOMENTS)
        require(again == scores, f"client {visit.cid} scores otherwise the second time")
    now = digest(played.server), played.digest
    require(now == before, "evaluating clients changed the run's states")


def check_messages_are_not_modified(case: MethodCase) -> None:
    """Whoever trains or aggregates works on copies: what existed before a round stays as it was."""
    program, played = case.program(), Played({}, {})
    for plan in program.schedule(ROUNDS):
        before = played if played.server else None
        copies = clone_state(played.server), {c: clone_state(s) for c, s in played.clients.items()}
        sent: list[tuple[int, State, str]] = []
        played = play(
            program,
            case.data,
            [plan],
            before,
            before_visit=lambda v, sent=sent: sent.append(  # type: ignore[misc]
                (v.cid, v.down.state, digest(v.down.state))
            ),
        )
        where = f"in round {plan.t} ({plan.kind})"
        for cid, state, old in sent:
            require(digest(state) == old, f"client {cid} changed the message it got {where}")
        if before is not None:
            same = before.digest == Played(*copies).digest
            require(same, f"states of the server or the clients from before were changed {where}")
    _require_same(case, played, "played round by round")


# ------------------------------------------------------------------ what must not leave


def check_personal_tensors_never_leave(case: MethodCase) -> None:
    """Nothing leaves a client that the method keeps there.

    By key: an upload holds shared tensors of the model and slices of the method's own parts. And
    by value: nothing that was sent is what the client keeps, unless the part says why
    (`keeps_what_it_sent`).
    """
    program = case.program()
    for answer in case.straight.answers:
        where = f"client {answer.cid}, round {answer.plan.t} ({answer.plan.kind})"
        personal = sorted(answer.up.state.get(METHOD, {}).keys() - program.shared(answer.cid))
        require(not personal, f"{where} sends {personal}, which `shared` keeps at the client")
        strange = sorted(answer.up.state.keys() - {*program.writers, FROZEN})
        require(not strange, f"{where} sends the slices {strange}, which belong to no part")
        kept = {
            f"{part}/{key}": value
            for part, tree in answer.kept.items()
            if part not in (FROZEN, *case.keeps_what_it_sent)
            for key, value in tree.items()
            if _telling(value)
        }
        for part, tree in answer.up.state.items():
            for key, sent in tree.items():
                equal = [at for at, v in kept.items() if v.shape == sent.shape and v.equal(sent)]
                require(
                    not equal,
                    f"{where} sends {part}/{key}, which is what it keeps as {''.join(equal[:1])};"
                    " if that is the method's design, say why in `keeps_what_it_sent`",
                )


# ------------------------------------------------------------------ awkward federations


def check_a_client_with_one_sample(case: MethodCase) -> None:
    """A client with a single training row takes part, with and without BatchNorm."""
    _require_sound_on(case, one_sample_federation())


def check_clients_lacking_classes(case: MethodCase) -> None:
    """Clients that hold a single class, and a class that nobody holds, do no harm."""
    _require_sound_on(case, lacking_federation())


def check_half_participation(case: MethodCase) -> None:
    """With half of the clients a round, whoever was never asked keeps nothing.

    With BatchNorm and a client of one row; over the wire it gives the same bytes.
    """
    data, model = half_federation(), case.batch_norm_model
    program = case.program(model=model)
    plans = training(program)
    special = [p for p in program.schedule(ROUNDS) if p.kind == "special" and p.t == 0]
    played = play(program, data, [*special, *plans], participation=0.5)
    _require_finite(played)
    cohorts = [program.cohort(plan, 0.5) for plan in plans]
    asked = set(range(CLIENTS)) if special else {cid for cohort in cohorts for cid in cohort}
    require(
        set(played.clients) == asked,
        f"clients {sorted(played.clients)} keep something, but {sorted(asked)} were asked",
    )
    over_wire = play(
        case.program(model=model), data, [*special, *plans], participation=0.5, carry=as_bytes
    )
    require(over_wire.digest == played.digest, "over the wire the states differ")


def check_a_newcomer_joins(case: MethodCase) -> None:
    """A client that no round has seen is sent something, and can be tested, trained and adapted."""
    program, played = case.program(), case.straight
    before = digest(played.server)
    (visit,) = _visits(program, case.data, played, range(CLIENTS, CLIENTS + 1))
    scores = evaluate(visit, MOMENTS)
    _require_complete(scores)
    require(finite(visit.down.state), "what the newcomer is sent is not finite")
    require(digest(played.server) == before, "the newcomer changed the server's state")
    carried = replace(visit, down=Down(visit.down.plan, as_bytes(visit.down.state)))
    require(evaluate(carried, MOMENTS) == scores, "over the wire the newcomer scores otherwise")


# ------------------------------------------------------------------ as text


def check_text_gives_the_method_back(case: MethodCase) -> None:
    """The expression that `describe` writes gives the same method, whatever its hyper-parameters.

    Only for a registered method: others have no expression.
    """
    if not case.registered:
        return
    method = case.method
    other = replace(_halved(method), terms=tuple(map(_halved, method.terms)))
    for full in (False, True):
        texts = [describe(m, full) for m in (method, other)]
        for original, text in zip((method, other), texts, strict=True):
            require(
                replace(parse_method(text), opt=original.opt) == original,
                f"{text!r} does not give the method back; hyper-parameters must be plain fields",
            )
        require(
            (other == method) == (texts[0] == texts[1]),
            f"{texts[0]!r} is written for two methods that differ",
        )


def check_what_is_tuned_can_be_built(case: MethodCase) -> None:
    """What it declares as worth tuning are its fields, and it can be built all over their ranges.

    At both ends of each range with the other fields as they are, and with all at their ends. A
    default lies in the range, or is None where the method settles it later.
    """
    space = Space.of(case.method, RunConfig.checked({}))
    for name, where in space.ranges.items():
        default = space.default[name]
        require(
            default is None or default in where,
            f"{name} is {default!r} by default, outside of {where}",
        )
    one_at_its_end = [{name: end} for name, where in space.ranges.items() for end in where.ends]
    all_at_their_ends = [
        {name: where.ends[at] for name, where in space.ranges.items()} for at in (0, -1)
    ]
    for values in (*one_at_its_end, *all_at_their_ends):
        replace(case, method=space.at(values)).program()


# ------------------------------------------------------------------ other engines


def check_pool_gives_the_same(case: MethodCase) -> None:
    """Worker processes give the same bytes and scores as one process."""
    with case.engine("pool") as pool:
        _require_same_run(case, pool, rounds=2, participation=0.5)


def check_flower_gives_the_same(case: MethodCase) -> None:
    """Flower's messages, with states on the disk of each client, change nothing that a run says.

    Every message is encoded and decoded, and every upload compared with what is expected.
    """
    with case.engine("flower") as flower:
        _require_same_run(case, flower, rounds=ROUNDS, seed=3)


CHECKS: tuple[Check, ...] = (
    check_one_round_trains,
    check_clients_receive_better_models,
    check_resumed_equals_straight,
    check_bytes_equal_objects,
    check_order_and_evaluation_change_nothing,
    check_run_folder_resumes,
    check_evaluation_changes_no_state,
    check_messages_are_not_modified,
    check_personal_tensors_never_leave,
    check_a_client_with_one_sample,
    check_clients_lacking_classes,
    check_half_participation,
    check_a_newcomer_joins,
    check_text_gives_the_method_back,
    check_what_is_tuned_can_be_built,
)
"""What needs no other process."""
ENGINE_CHECKS: dict[str, Check] = {
    "pool": check_pool_gives_the_same,
    "flower": check_flower_gives_the_same,
}
"""By engine: its runs are compared with those of this process."""


# ------------------------------------------------------------------ parts of checks


class _Stopped(Exception):
    """Ends a run as Ctrl-C would."""


class _StopAfter(Watcher):
    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, run: RunView, record: RoundRecord) -> None:
        self.left -= 1
        if not self.left:
            raise _Stopped


def _visits(
    program: Program, data: FederatedData, played: Played, ids: Iterable[int] = range(CLIENTS)
) -> Iterator[Visit]:
    """Clients after the last training round, with what they then hold."""
    r = Round(program, training(program)[-1], played.server)
    for cid in ids:
        own = played.clients.get(cid)
        yield Visit(program, cid, data.client(cid), send(r, cid, own), own)


def _require_same(case: MethodCase, played: Played, how: str) -> None:
    require(
        played.digest == case.straight.digest,
        f"{how}, the states at the end differ from those of the plain run"
        f"{_difference(played, case.straight)}",
    )


def _difference(one: Played, other: Played) -> str:
    """Where two runs differ first."""
    states = [("the server", one.server, other.server)]
    states += [
        (f"client {cid}", one.clients.get(cid, {}), other.clients.get(cid, {}))
        for cid in sorted({*one.clients, *other.clients})
    ]
    for who, a, b in states:
        for name in sorted({*a, *b}):
            for key in sorted({*a.get(name, {}), *b.get(name, {})}):
                ours, theirs = a.get(name, {}).get(key), b.get(name, {}).get(key)
                if ours is None or theirs is None or not torch.equal(ours, theirs):
                    return f", first in {name}/{key} of {who}"
    return ""


def _require_same_run(case: MethodCase, engine: Engine, **settings: Any) -> None:
    inline, other = (start(case.experiment(**settings), e) for e in (Inline(), engine))
    require(
        other.summary.state_sha256 == inline.summary.state_sha256,
        "the states at the end differ from those of a run in one process",
    )
    require(outcome(other) == outcome(inline), "the records of the run differ")


def outcome(result: Result) -> tuple[Summary, list[RoundRecord]]:
    """All that a run says, but not how long it took and where it is."""
    records = [replace(record, seconds=0.0, activities={}) for record in result.records]
    return replace(result.summary, seconds=0.0, activities={}, run=None), records


def _require_sound_on(case: MethodCase, data: FederatedData) -> None:
    """Two rounds and a test of every client, with and without BatchNorm, give finite numbers."""
    for model in (case.model, case.batch_norm_model):
        program = case.program(clients=len(data), model=model)
        played = play(program, data, program.schedule(2))
        _require_finite(played)
        for visit in _visits(program, data, played, range(len(data))):
            _require_finite_scores(evaluate(visit, MOMENTS))


def _require_finite(played: Played) -> None:
    require(finite(played.server), "the server's state is not finite")
    for answer in played.answers:
        where = f"of client {answer.cid}, {_named(answer.plan)}"
        require(finite(answer.up.state), f"the upload {where} is not finite")
        require(finite(answer.kept), f"what is kept {where} is not finite")
        metrics = answer.up.metrics
        require(all(map(isfinite, metrics.values())), f"the metrics {metrics} {where}")


def _require_complete(scores: Iterable[ClientScore]) -> None:
    """A score for each moment and split that was asked for."""
    scores = tuple(scores)
    scored = {(score.moment, score.split) for score in scores}
    asked = {(moment, split) for moment in MOMENTS.moments for split in MOMENTS.splits}
    require(scored == asked, f"there are scores for {sorted(scored)}, not for {sorted(asked)}")
    _require_finite_scores(scores)


def _require_finite_scores(scores: Iterable[ClientScore]) -> None:
    for score in scores:
        require(all(map(isfinite, score.metrics.values())), f"the score {score} is not finite")


def _telling(tensor: Tensor) -> bool:
    """Enough different values that equality is no coincidence (zeros, counts, initial ones)."""
    steps = tensor.flatten().sort().values.diff().count_nonzero()
    return tensor.is_floating_point() and tensor.numel() >= 4 and int(steps) >= 2


def _halved(part: Part) -> Part:
    """The same part with every real hyper-parameter at half its value."""
    values = {f.name: v / 2 for f in fields(part) if isinstance(v := getattr(part, f.name), float)}
    return replace(part, **values)


def _named(plan: Plan) -> str:
    return f"round {plan.t} ({plan.kind})"
