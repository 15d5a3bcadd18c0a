"""The checks of a client's answer: what may be changed, kept and sent, with client and round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedloom.core.client import client
from fedloom.core.evaluate import Ask
from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, send
from fedloom.core.site import Site, Visit
from fedloom.core.term import Term
from fedloom.core.tree import State
from fedloom.errors import LeakError
from helpers import digest, mlp, tables

PERSONAL_HEAD = "* !head.*"


def answer(method: Method, plan: Plan | None = None, cid: int = 1) -> tuple[object, State, State]:
    """(upload, kept, the server's state) of one visit."""
    program = Program(method, mlp(norm=True), clients=2)
    server = initial_server(program)
    plan = plan or program.schedule(1)[0]
    down = send(Round(program, plan, server), cid)
    up, kept = client(Visit(program, cid, tables(8, 7).client(cid), down))
    return up, kept, server


@dataclass(frozen=True)
class Does(Term):
    """Calls a function in one of its hooks."""

    name: ClassVar[str] = "does"
    hook: str = "finish"
    act: Callable[[Site], State | None] = lambda s: None

    def _do(self, hook, s, otherwise):
        return self.act(s) or otherwise if hook == self.hook else otherwise

    def client_init(self, s):
        return self._do("client_init", s, {})

    def grads(self, g, s):
        return self._do("grads", s, g)

    def loss(self, b, s):
        return self._do("loss", s, 0.0)

    def finish(self, s):
        return self._do("finish", s, {})


@dataclass(frozen=True, kw_only=True)
class Receives(Method):
    """Calls a function in `receive`, where some methods mix what was sent."""

    name: ClassVar[str] = "receives"
    act: Callable[[Site], None] = lambda s: None

    def receive(self, s):
        self.act(s)
        return super().receive(s)


# ------------------------------------------------------------------ what was received


def add_to_down(s: Site) -> None:
    with torch.no_grad():
        s.down[METHOD]["head.bias"].add_(1)


def replace_in_down(s: Site) -> None:
    s.down[METHOD]["head.bias"] = torch.ones(3)


def add_to_received(s: Site) -> None:
    with torch.no_grad():
        s.received["head.bias"].add_(1)


def train_received(s: Site) -> None:
    """A teacher run in training mode moves the server's BatchNorm statistics."""
    s.net(s.received, s.data.train.x(torch.arange(4)), train=True)


HOOKS = ["loss", "grads", "finish"]


@pytest.mark.parametrize(
    ("hook", "act"),
    [
        ("client_init", add_to_down),
        *((hook, add_to_down) for hook in HOOKS),
        *((hook, replace_in_down) for hook in HOOKS),
    ],
)
def test_a_hook_that_changes_what_was_received_is_caught(hook: str, act: Callable) -> None:
    with pytest.raises(LeakError, match="client 1, round 1: a hook changed what was received"):
        answer(Method() + Does(hook, act))


@pytest.mark.parametrize("act", [add_to_received, train_received])
def test_the_received_model_is_what_was_received(act: Callable) -> None:
    with pytest.raises(LeakError, match="client 1, round 1: a hook changed what was received"):
        answer(Method() + Does("finish", act))


def test_receive_may_not_mix_in_place() -> None:
    with pytest.raises(LeakError, match="client 1, round 1: a hook changed what was received"):
        answer(Receives(act=add_to_down))


def test_training_leaves_the_servers_tensors_alone() -> None:
    """Rule 6: in one process `down` is the server's own memory."""
    _, _, server = answer(Method())
    assert digest(server) == digest(initial_server(Program(Method(), mlp(norm=True), clients=2)))


def test_what_is_kept_and_sent_shares_no_memory_with_anything() -> None:
    class Both(Term):
        """Keeps and sends the very same tensor."""

        name: ClassVar[str] = "both"

        def finish(self, s):
            s.own[self.name] = {"v": s.w["body.0.weight"]}
            return {self.name: {"v": s.w["body.0.weight"]}}

    up, kept, server = answer(Method() + Both())
    pointers = [
        v.data_ptr()
        for state in (up.state, kept, server)
        for tree in state.values()
        for v in tree.values()
    ]
    assert len(set(pointers)) == len(pointers)


# ------------------------------------------------------------------ what may leave


class LeaksKey(Method):
    name: ClassVar[str] = "leaks_key"

    def finish(self, s):
        return {METHOD: dict(s.w)}


def test_a_personal_key_in_the_upload_is_caught() -> None:
    with pytest.raises(LeakError, match=r"client 1, round 1: .*'head\.bias' is in the upload"):
        answer(LeaksKey(shared=PERSONAL_HEAD))
    up, _, _ = answer(LeaksKey(shared="*"))
    assert "head.bias" in up.state[METHOD]


@pytest.mark.parametrize(
    "taken",
    [
        lambda s: s.w["head.weight"],
        lambda s: s.w["head.weight"].T,
        lambda s: s.w["head.weight"][1:],
        lambda s: s.w["head.weight"].detach(),
        lambda s: s.own[METHOD]["head.weight"],
        lambda s: s.received["head.weight"],
    ],
)
def test_a_personal_tensor_under_another_name_is_caught(taken: Callable) -> None:
    term = Does("finish", lambda s: {"does": {"innocent": taken(s)}})
    with pytest.raises(LeakError, match=r"client 1, round 1: does/innocent .* a personal tensor"):
        answer(Method(shared=PERSONAL_HEAD) + term)


def test_a_shared_tensor_under_another_name_may_leave() -> None:
    """The term before would be caught whatever it sends if the check looked at nothing."""
    term = Does("finish", lambda s: {"does": {"innocent": s.w["head.weight"]}})
    up, _, _ = answer(Method() + term)
    assert torch.equal(up.state["does"]["innocent"], up.state[METHOD]["head.weight"])


class AsksFor(Term):
    """Sends what its client kept from before in a special round."""

    name: ClassVar[str] = "asks_for"
    before: ClassVar[tuple[str, ...]] = ("it",)

    def special(self, s):
        return {self.name: {"v": s.own[METHOD]["head.weight"]}}


def test_a_personal_tensor_in_a_special_round_is_caught() -> None:
    where = r"client 1, special round asks_for\.it: asks_for/v"
    with pytest.raises(LeakError, match=where):
        answer(Method(shared=PERSONAL_HEAD) + AsksFor())


def test_a_slice_nobody_owns_is_caught_in_the_upload() -> None:
    with pytest.raises(LeakError, match=r"client 1, round 1: .* slice 'other' that no part owns"):
        answer(Method() + Does("finish", lambda s: {"other": {}}))


# ------------------------------------------------------------------ what may be kept


def set_kept(name: str) -> Callable[[Site], None]:
    return lambda s: s.own.__setitem__(name, {"v": torch.ones(1)})


def test_a_slice_nobody_owns_is_caught_among_what_is_kept() -> None:
    with pytest.raises(LeakError, match="client 1, round 1: kept slice 'other' has no owner"):
        answer(Method() + Does("loss", set_kept("other")))


def add_to_own_model(s: Site) -> None:
    with torch.no_grad():
        s.own[METHOD]["head.bias"].add_(1)


@pytest.mark.parametrize(
    ("act", "at"),
    [
        (add_to_own_model, r"model/head\.bias"),
        (lambda s: s.own[METHOD].update({"head.bias": torch.ones(3)}), r"model/head\.bias"),
        (lambda s: s.own[METHOD].clear(), r"model/head\.(bias|weight)"),
        (set_kept("second"), "second/v"),
    ],
)
def test_a_term_that_writes_another_parts_slice_is_caught(act: Callable, at: str) -> None:
    class Second(Term):
        name: ClassVar[str] = "second"

    method = Method(shared=PERSONAL_HEAD) + Does("finish", act) + Second()
    with pytest.raises(LeakError, match=f"client 1, round 1: does wrote {at}"):
        answer(method)


def test_a_term_may_write_its_own_slice() -> None:
    _, kept, _ = answer(Method() + Does("finish", set_kept("does")))
    assert kept["does"]["v"].item() == 1


def test_empty_slices_are_not_kept() -> None:
    _, kept, _ = answer(Method())
    assert kept == {}


# ------------------------------------------------------------------ the answer


def test_the_answer_says_how_many_rows_and_what_loss() -> None:
    up, _, _ = answer(Method())
    assert up.n == 7
    assert set(up.metrics) == {"loss"}
    assert 0 < up.metrics["loss"] < 10


class Adapts(Method):
    name: ClassVar[str] = "adapts"

    @property
    def adapt(self):
        return (Phase(epochs=2),)


def test_an_adapt_round_uploads_nothing_and_keeps_the_model_as_final() -> None:
    method = Adapts(shared=PERSONAL_HEAD)
    up, kept, _ = answer(method, plan=Plan(2, "adapt", clients=2))
    assert up.state == {}
    assert set(kept) == {METHOD, "final/model"}
    net = Program(method, mlp(norm=True), clients=2).nets[0]
    assert torch.equal(kept[METHOD]["head.bias"], net.initial["head.bias"])
    assert not torch.equal(kept["final/model"]["head.bias"], net.initial["head.bias"])
    assert kept["final/model"].keys() == net.initial.keys()


def test_an_adaptation_keeps_nothing_else_that_was_written_in_it() -> None:
    """What fine-tuning did to a slice is in the final model or nowhere: more rounds may follow."""
    method = Adapts() + Does("loss", set_kept("does"))
    _, kept, _ = answer(method, plan=Plan(2, "adapt", clients=2))
    assert set(kept) == {"final/model"}


def test_measuring_inside_the_call_changes_nothing_but_the_scores() -> None:
    program = Program(Method(), mlp(dropout=0.5), clients=2)
    plan = program.schedule(1)[0]
    down = send(Round(program, plan, initial_server(program)), 0)
    visit = Visit(program, 0, tables(8, 7).client(0), down)
    (plain, _), (asked, _) = client(visit), client(visit, Ask(("trained",)))
    assert digest(plain.state) == digest(asked.state)
    assert [(s.moment, s.split, set(s.metrics)) for s in asked.scores] == [
        ("trained", "test", {"accuracy", "nll"})
    ]
    assert plain.scores == ()
    assert asked.metrics == plain.metrics
