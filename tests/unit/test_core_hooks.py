"""A misspelt hook is refused where it is written; an exception in a hook says where it happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from fedloom.core.client import client
from fedloom.core.evaluate import Ask, evaluate
from fedloom.core.message import Down, Up
from fedloom.core.method import Method
from fedloom.core.phase import Phase
from fedloom.core.program import Program
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.site import Visit
from fedloom.core.term import Term
from fedloom.errors import BadInput, HookError, LeakError
from helpers import mlp, tables

# ------------------------------------------------------------------ names and arguments


def define(body: dict[str, object], base: type[Term] = Method) -> type[Term]:
    """A class of a user, called mine."""
    return type("Mine", (base,), {"name": "mine", **body})


@pytest.mark.parametrize(
    ("name", "base", "sentence"),
    [
        ("aggregte", Method, "method 'mine' defines aggregte(), which is no hook; did you mean"),
        ("aggregte", Method, "did you mean 'aggregate'?"),
        ("grad", Term, "term 'mine' defines grad(), which is no hook; did you mean 'grads'?"),
        ("phase", Method, "defines phase(), which is no hook; did you mean 'phases'?"),
        ("distance", Method, "no hook of a method; begin a helper's name with an underscore"),
        ("predict", Term, "term 'mine' defines predict(), which is no hook of a term"),
    ],
)
def test_a_function_that_is_no_hook_is_refused(name: str, base: type[Term], sentence: str) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        define({name: lambda self: None}, base)


def test_a_misspelling_in_a_base_that_is_no_part_is_refused_too() -> None:
    class Mixed:
        def recieve(self, s: object) -> None: ...

    with pytest.raises(BadInput, match="did you mean 'receive'"):
        type("Mine", (Mixed, Method), {"name": "mine"})


@pytest.mark.parametrize(
    ("name", "function", "sentence"),
    [
        ("grads", lambda self, g: g, "grads(self, g), which the core calls with other arguments"),
        ("grads", lambda self, g: g, "write grads(self, g, s)"),
        ("finish", lambda self, s, b: {}, "write finish(self, s)"),
        ("weight", lambda self, *, r, cid, up: 1.0, "write weight(self, r, cid, up)"),
        ("predict", staticmethod(lambda self, net, state, x: x), "write predict(net, state, x)"),
    ],
)
def test_a_hook_with_other_arguments_is_refused(name: str, function: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        define({name: function})


@pytest.mark.parametrize(
    "function",
    [
        lambda self, g, s: g,
        lambda self, gradient, site, scale=1.0: gradient,
        lambda self, *both: both[0],
        torch.no_grad()(lambda self, g, s: g),
        staticmethod(lambda g, s: g),
    ],
)
def test_a_hook_may_name_its_arguments_and_have_more_with_defaults(function: object) -> None:
    assert define({"grads": function}).__name__ == "Mine"


def test_helpers_properties_and_settings_are_a_users_own() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Method):
        name: ClassVar[str] = "mine"
        penalty: Callable[[float], float] = abs
        strength: float = 1.0

        @property
        def experts(self) -> int:
            return 2

        def _distance(self) -> float:
            return self.penalty(-self.strength)

    assert Mine(strength=3.0)._distance() == 3.0


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"share": "* !head.*"}, "method 'mine' has 'share', which is nearly 'shared'"),
        ({"__annotations__": {"gather": "ClassVar[bool]"}, "gather": True}, "nearly 'gathers'"),
        ({"phase": property(lambda self: ())}, "nearly 'phases'"),
        ({"phases": lambda self: ()}, "phases is a property; write @property above it"),
        ({"weight": 0.5}, "weight is a hook, weight(self, r, cid, up); give the setting another"),
        ({"__annotations__": {"loss": "str"}}, "loss is a hook, loss(self, b, s)"),
    ],
)
def test_a_setting_that_would_be_ignored_or_hide_a_hook_is_refused(
    body: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        define(body)


# ------------------------------------------------------------------ exceptions


@dataclass(frozen=True)
class Fails(Term):
    """Raises in one hook."""

    name: ClassVar[str] = "fails"
    before: ClassVar[tuple[str, ...]] = ("visit",)
    at: str = ""
    error: Exception = field(default_factory=lambda: KeyError("x"))

    def _fail(self, hook: str) -> None:
        if hook == self.at:
            raise self.error

    def extend(self, net: Any, clients: int) -> None:
        self._fail("extend")

    def server_init(self, r: Any) -> Any:
        self._fail("server_init")
        return {self.name: {"a": torch.zeros(1)}}

    def client_init(self, s: Any) -> Any:
        self._fail("client_init")
        return {}

    def send(self, r: Any, cid: int) -> Any:
        self._fail("send")
        return {}

    def loss(self, b: Any, s: Any) -> Any:
        self._fail("loss")
        return 0.0

    @torch.no_grad()
    def grads(self, g: Any, s: Any) -> Any:
        self._fail("grads")
        return g

    def special(self, s: Any) -> Any:
        self._fail("special")
        return {}

    def finish(self, s: Any) -> Any:
        self._fail("finish")
        return {self.name: {"a": torch.ones(1)}}

    def weight(self, r: Any, cid: int, up: Any) -> float:
        self._fail("weight")
        return 1.0

    def aggregate(self, r: Any) -> Any:
        self._fail("aggregate")
        return {self.name: r.mean(self.name)}


@dataclass(frozen=True, kw_only=True)
class InTwoPhases(Method):
    name: ClassVar[str] = "in_two_phases"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return Phase("head", "head.*"), Phase("body", "body.*")

    def predict(self, net: Any, state: Any, x: Any) -> Any:
        raise ValueError("this cannot be\npredicted")


def play(term: Fails, step: int = 1) -> None:
    """The special round (step 0) or round 1 of two clients."""
    program = Program(InTwoPhases() + term, mlp(), clients=2)
    plan = program.schedule(1)[step]
    r = Round(program, plan, initial_server(program), cohort=[0, 1])
    data = tables(8, 7)
    for cid in (0, 1):
        up, _ = client(Visit(program, cid, data.client(cid), send(r, cid)))
        r.add(cid, up)
    merge(r)


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("extend", "before the run"),
        ("server_init", "on the server, before the run"),
        ("send", "on the server for client 0, round 1"),
        ("client_init", "at client 0, round 1"),
        ("loss", "at client 0, round 1 (phase 'head')"),
        ("grads", "at client 0, round 1 (phase 'head')"),
        ("finish", "at client 0, round 1"),
        ("weight", "on the server for client 0, round 1"),
        ("aggregate", "on the server, round 1"),
    ],
)
def test_an_exception_names_hook_place_round_and_phase_once(hook: str, where: str) -> None:
    with pytest.raises(HookError) as caught:
        play(Fails(hook))
    assert str(caught.value) == f"fails.{hook} {where}: KeyError: 'x'"
    assert caught.value.where == f"fails.{hook} {where}"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_special_round_is_named() -> None:
    with pytest.raises(HookError, match=r"^fails.special at client 0, special round fails.visit:"):
        play(Fails("special"), step=0)


def test_the_innermost_hook_is_named_and_the_phase_it_was_in() -> None:
    """`local` calls `step`, which calls the term's loss, in the second phase as in the first."""

    class OnlyInBody(Fails):
        def loss(self, b: Any, s: Any) -> Any:
            return 0.0 if s.phase.name == "head" else b.out["no such stage"]

    with pytest.raises(HookError, match=r"^fails.loss at client 0, round 1 \(phase 'body'\): Key"):
        play(OnlyInBody())


def test_evaluation_names_the_hook_and_keeps_the_first_line() -> None:
    program = Program(InTwoPhases(), mlp(), clients=2)
    plan = program.schedule(1)[0]
    visit = Visit(program, 1, tables(8, 7).client(1), Down(plan, initial_server(program)))
    with pytest.raises(HookError) as caught:
        evaluate(visit, Ask(("received",)))
    assert str(caught.value) == (
        "in_two_phases.predict at client 1, round 1: ValueError: this cannot be"
    )


def test_errors_for_the_user_and_errors_outside_hooks_stay_as_they_are() -> None:
    with pytest.raises(LeakError, match=r"^a sentence$"):
        play(Fails("finish", LeakError("a sentence")))
    program = Program(Method(), mlp(), clients=1)
    r = Round(program, program.schedule(1)[0], initial_server(program), cohort=[0])
    with pytest.raises(KeyError):
        r.add(0, Up({"nobody's": {}}, 1))
