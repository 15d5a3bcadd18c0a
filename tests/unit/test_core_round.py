"""The server's side: uploads in any order, streaming means, who may write what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedloom.core.message import Plan, Up
from fedloom.core.method import Method
from fedloom.core.net import METHOD, Net
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.term import Term
from fedloom.core.tree import clone_state
from fedloom.errors import LeakError
from helpers import digest, mlp, play, run, tables

PLAN = Plan(1, seed=0, clients=4)


def program(*terms: Term, **settings: object) -> Program:
    return Program(Method(terms=terms, **settings), mlp(norm=True), clients=4)


def upload(prog: Program, value: float, n: int = 1, **slices: Tensor) -> Up:
    """The whole model filled with one value."""
    model = {k: torch.full_like(v, value) for k, v in prog.nets[0].tree().items()}
    return Up({METHOD: model, **{name: {"v": v} for name, v in slices.items()}}, n)


def merged(prog: Program, ups: dict[int, Up | None], order: tuple[int, ...] = ()) -> dict:
    r = Round(prog, PLAN, initial_server(prog), list(ups))
    for cid in order or tuple(ups):
        r.add(cid, ups[cid])
    return merge(r)


# ------------------------------------------------------------------ the mean


def test_the_mean_is_weighted_by_samples_and_integers_stay_integers() -> None:
    """(1*1 + 3*5) / 4 = 4 and the same, rounded, for BatchNorm's counter."""
    prog = program()
    model = merged(prog, {0: upload(prog, 1, n=1), 1: upload(prog, 5, n=3)})[METHOD]
    assert all(v.eq(4).all() for v in model.values())
    assert model["body.1.num_batches_tracked"].dtype == torch.int64


def test_uniform_weighting_ignores_samples() -> None:
    prog = program(weighting="uniform")
    model = merged(prog, {0: upload(prog, 1, n=1), 1: upload(prog, 5, n=3)})[METHOD]
    assert model["head.bias"].tolist() == [3, 3, 3]


def test_server_lr_is_a_step_towards_the_mean() -> None:
    """x + 0.5 (4 - x); the integer counter goes from 0 to 2 and stays an integer."""
    prog = program(server=ServerOpt(lr=0.5))
    old = prog.nets[0].tree()
    model = merged(prog, {0: upload(prog, 4)})[METHOD]
    assert torch.equal(model["head.weight"], old["head.weight"] + 0.5 * (4 - old["head.weight"]))
    assert model["body.1.num_batches_tracked"].item() == 2
    assert model["body.1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("order", list(permutations((0, 2, 3))))
def test_uploads_in_any_order_give_the_same_bytes(order: tuple[int, ...]) -> None:
    """1 + 2^60 - 2^60 is 1 or 0 even in float64, depending on the order of summation."""
    prog = program()
    ups = {0: upload(prog, 1.0), 2: upload(prog, 2.0**60), 3: upload(prog, -(2.0**60))}
    assert digest(merged(prog, ups, order)) == digest(merged(prog, ups))


def test_a_client_that_did_not_answer_is_left_out() -> None:
    prog = program()
    some = merged(prog, {0: upload(prog, 1), 1: None, 2: upload(prog, 5)}, order=(2, 1, 0))
    assert some[METHOD]["head.bias"].tolist() == [3, 3, 3]


def test_nobody_answering_changes_nothing() -> None:
    prog = program()
    assert digest(merged(prog, {0: None, 1: None})) == digest(initial_server(prog))


def test_the_old_server_state_is_not_modified() -> None:
    prog = program(server=ServerOpt(lr=0.5))
    server = initial_server(prog)
    r = Round(prog, PLAN, server, [0])
    copy = clone_state(server)
    r.add(0, upload(prog, 9))
    new = merge(r)
    assert digest(server) == digest(copy) != digest(new)
    old_memory = {v.data_ptr() for v in server[METHOD].values()}
    assert not old_memory & {v.data_ptr() for v in new[METHOD].values()}


def test_a_tied_weight_is_averaged_once() -> None:
    """One key, so one tensor in the mean: (1 + 3) / 2."""

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2, bias=False)
            self.b = torch.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    prog = Program(Method(), Net((2,), body=Pair(), head=torch.nn.Linear(2, 2)), clients=2)
    model = merged(prog, {0: upload(prog, 1), 1: upload(prog, 3)})[METHOD]
    assert list(model) == ["body.a.weight", "head.weight", "head.bias"]
    assert model["body.a.weight"].tolist() == [[2, 2], [2, 2]]


# ------------------------------------------------------------------ streaming


class Keeps(Term):
    name: ClassVar[str] = "keeps"
    gathers: ClassVar[bool] = True

    def aggregate(self, r):
        return {self.name: {"all": r.stack(self.name, "v")}}


class Peeks(Term):
    name: ClassVar[str] = "peeks"

    def aggregate(self, r):
        return {self.name: {"all": r.stack(self.name, "v")}}


class Weighs(Term):
    """Its own weights for its own slice: client id + 1."""

    name: ClassVar[str] = "weighs"

    def weight(self, r, cid, up):
        return float(cid + 1)

    def aggregate(self, r):
        return {self.name: {"mean": r.mean(self.name)["v"], "sum": r.sum(self.name)["v"]}}


def test_uploads_are_folded_and_dropped_unless_a_part_gathers() -> None:
    prog = program()
    r = Round(prog, PLAN, initial_server(prog), [0, 1])
    r.add(1, upload(prog, 1, n=7))
    assert r.ups == {}, "client 1 waits for client 0"
    r.add(0, upload(prog, 2, n=5))
    assert [(cid, up.state, up.n) for cid, up in r.ups.items()] == [(0, {}, 5), (1, {}, 7)]


def test_a_part_that_gathers_sees_its_uploads_in_id_order() -> None:
    """Its own slices and no others: memory for models would grow with the cohort."""
    prog = program(Keeps())
    ups = {cid: upload(prog, 0, keeps=torch.tensor([float(cid)])) for cid in (3, 0, 2)}
    assert merged(prog, ups)["keeps"]["all"].tolist() == [[0], [2], [3]]
    r = Round(prog, PLAN, initial_server(prog), list(ups))
    for cid, up in ups.items():
        r.add(cid, up)
    assert [(cid, list(up.state)) for cid, up in r.ups.items()] == [
        (0, ["keeps"]),
        (2, ["keeps"]),
        (3, ["keeps"]),
    ]


def test_single_uploads_without_gathers_are_refused() -> None:
    prog = program(Peeks())
    with pytest.raises(LeakError, match=r"peeks reads single uploads; .*must declare gathers"):
        merged(prog, {0: upload(prog, 0, peeks=torch.zeros(1))})


def test_every_part_weighs_its_own_slice() -> None:
    """Slice `weighs`: (1*10 + 2*40) / 3 = 30, sum 90; the model by samples: (3*0 + 1*8) / 4 = 2."""
    prog = program(Weighs())
    ups = {
        0: upload(prog, 0, n=3, weighs=torch.tensor([10.0])),
        1: upload(prog, 8, n=1, weighs=torch.tensor([40.0])),
    }
    server = merged(prog, ups)
    assert (server["weighs"]["mean"].item(), server["weighs"]["sum"].item()) == (30, 90)
    assert server[METHOD]["head.bias"].tolist() == [2, 2, 2]


def test_a_slice_nobody_sent_has_an_empty_mean() -> None:
    prog = program()
    r = Round(prog, PLAN, initial_server(prog), [0])
    r.add(0, upload(prog, 1))
    assert (r.mean("dbe"), r.sum("dbe")) == ({}, {})


# ------------------------------------------------------------------ who writes what


@dataclass(frozen=True)
class Meddles(Term):
    name: ClassVar[str] = "meddles"
    target: str = METHOD

    def aggregate(self, r):
        return {self.target: dict(r.server[METHOD])}


@pytest.mark.parametrize("target", [METHOD, "other", "method"])
def test_a_part_that_writes_another_slice_on_the_server_is_caught(target: str) -> None:
    prog = program(Meddles(target))
    with pytest.raises(LeakError, match=f"round 1: meddles wrote the server slice '{target}'"):
        merged(prog, {0: upload(prog, 1)})


class Reads(Term):
    """Writes down the model it saw on the server while aggregating."""

    name: ClassVar[str] = "reads"

    def aggregate(self, r):
        return {self.name: {"seen": r.server[METHOD]["head.bias"]}}


def test_every_part_aggregates_from_the_old_state_and_gets_a_copy() -> None:
    prog = program(Reads())
    r = Round(prog, PLAN, initial_server(prog), [0])
    r.add(0, upload(prog, 99))
    server, old = merge(r), r.server[METHOD]["head.bias"]
    assert torch.equal(server["reads"]["seen"], old)
    assert server["reads"]["seen"].data_ptr() != old.data_ptr()
    assert server[METHOD]["head.bias"].tolist() == [99, 99, 99]


class Asks(Term):
    """A special round in which every part is given the chance to aggregate."""

    name: ClassVar[str] = "asks"
    before: ClassVar[tuple[str, ...]] = ("ask",)

    def special(self, s):
        s.method.local(s)
        s.own["asks"] = {"here": torch.ones(1)}
        s.own[METHOD] = {"head.bias": torch.full((3,), 7.0)}
        return {self.name: {"v": torch.ones(1)}}

    def aggregate(self, r):
        mean = r.mean(self.name)
        return {self.name: {"v": mean["v"]}} if mean else {}


def test_a_special_round_changes_only_its_owners_slice() -> None:
    """On the server and at the clients; the weights trained in it vanish."""
    prog = Program(Method(shared="* !head.*", terms=(Asks(), Reads())), mlp(), clients=2)
    plans = prog.schedule(1)[:1]
    assert (plans[0].kind, plans[0].owner, plans[0].cohort) == ("special", "asks.ask", "all")
    played = play(prog, tables(8, 5), plans)
    assert set(played.server) == {METHOD, "asks"}
    assert digest({METHOD: played.server[METHOD]}) == digest(initial_server(prog))
    for kept in played.clients.values():
        assert kept["asks"]["here"].item() == 1
        assert torch.equal(kept[METHOD]["head.bias"], prog.nets[0].initial["head.bias"])


# ------------------------------------------------------------------ sending


class Secret(Term):
    name: ClassVar[str] = "secret"

    def server_init(self, r):
        return {self.name: {"rows": torch.arange(float(r.plan.clients))}}

    def send(self, r, cid):
        return {self.name: {"row": r.server[self.name]["rows"][cid : cid + 1]}}


def test_every_part_says_what_a_client_gets() -> None:
    prog = program(Secret(), Reads())
    r = Round(prog, PLAN, initial_server(prog))
    down = send(r, 2)
    assert down.plan == PLAN
    assert set(down.state) == {METHOD, "secret"}
    assert down.state["secret"]["row"].tolist() == [2]


def test_initial_server_holds_what_is_shared_only() -> None:
    prog = Program(Method(shared="body.*"), mlp(), clients=2)
    assert set(initial_server(prog)[METHOD]) == {"body.0.weight", "body.0.bias"}


class Draws(Term):
    name: ClassVar[str] = "draws"

    def server_init(self, r):
        return {self.name: {"v": torch.rand(3)}}

    def aggregate(self, r):
        return {self.name: {"v": torch.rand(3), "own": torch.rand(3, generator=r.gen("own"))}}


def test_the_server_draws_by_seed_and_round_only() -> None:
    """Torch's own stream is neither used nor moved."""
    results = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        prog = program(Draws())
        results.append((initial_server(prog), merged(prog, {0: upload(prog, 0)})))
        wanted = torch.rand(1, generator=torch.Generator().manual_seed(disturbance))
        assert torch.equal(torch.rand(1), wanted)
    assert digest(results[0][0]) == digest(results[1][0])
    assert digest(results[0][1]) == digest(results[1][1])


def test_averaging_a_real_run_keeps_the_counter_whole() -> None:
    """Clients take 3 and 2 batches a round; the mean by 8 and 5 rows, (24 + 10) / 13 = 2.6,
    is rounded to 3."""
    method = Method(opt=Opt(batch=3))
    played = run(Program(method, mlp(norm=True), clients=2), tables(8, 5), rounds=1)
    counter = played.server[METHOD]["body.1.num_batches_tracked"]
    assert (counter.dtype, counter.item()) == (torch.int64, 3)
