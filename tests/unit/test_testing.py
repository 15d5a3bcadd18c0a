"""`fedloom.testing`: a method that breaks a rule is caught by the check of that rule, by name."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import pytest
import torch

import fedloom as fl
from fedloom.errors import UnknownName
from fedloom.methods import register
from fedloom.registry import squash
from fedloom.testing import CHECKS, ContractBroken, MethodCase, check_method
from fedloom.testing.checks import Check


@dataclass(frozen=True, kw_only=True)
class Base(fl.Method):
    """Personal heads; every class below breaks one rule."""

    name: ClassVar[str] = "broken"
    shared: str = "* !head.*"


class Lazy(Base):
    def local(self, s: Any) -> None:
        pass


class Forgetful(Base):
    """Sends back what it received."""

    def finish(self, s: Any) -> Any:
        super().finish(s)
        return {"model": {k: s.received[k].clone() for k in s.shared}}


class KeepsOnItself(Base):
    """Corrects gradients by how often this object was asked."""

    def grads(self, g: Any, s: Any) -> Any:
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return {k: v + 1e-3 * self.calls for k, v in g.items()}  # type: ignore[attr-defined]


COUNT = itertools.count(1)


class CountsVisits(Base):
    """The same in a module."""

    def grads(self, g: Any, s: Any) -> Any:
        return {k: v + 1e-5 * next(COUNT) for k, v in g.items()}


class DrawsElsewhere(Base):
    """From Python's own stream, in place of `s.gen`."""

    def grads(self, g: Any, s: Any) -> Any:
        return {k: v + 1e-3 * random.random() for k, v in g.items()}


class WritesIntoTheMessage(Base):
    def finish(self, s: Any) -> Any:
        for value in s.down["model"].values():
            if value.is_floating_point():
                value.add_(1.0)
        return super().finish(s)


class ChangesStateInATest(Base):
    def personalize(self, s: Any) -> Any:
        for value in s.down["model"].values():
            value.mul_(0.5)
        return super().personalize(s)


class KeepsACopy(Base):
    """Keeps the body that it sends."""

    def finish(self, s: Any) -> Any:
        sent = super().finish(s)
        s.own[self.name] = {k: v.clone() for k, v in sent["model"].items()}
        return sent


class SaysSo(KeepsACopy):
    keeps_what_it_sent: ClassVar[str] = "the next round is compared with it"


class DividesByRowsLessOne(Base):
    def loss(self, b: Any, s: Any) -> Any:
        return super().loss(b, s) / torch.tensor(len(s.data.train) - 1)


class TurnsAway(Base):
    def send(self, r: Any, cid: int) -> Any:
        if cid >= r.program.clients:
            raise KeyError(cid)
        return super().send(r, cid)


@dataclass(frozen=True, kw_only=True)
class TunesTooFar(Base):
    """Refuses the upper end of its range."""

    tunable: ClassVar[fl.Tunable] = {"portion": fl.Linear(0, 2)}
    portion: float = 0.5

    def __post_init__(self) -> None:
        if self.portion > 1:
            raise fl.BadInput(f"portion is at most 1, not {self.portion}")


@dataclass(frozen=True, kw_only=True)
class BeginsOutside(Base):
    tunable: ClassVar[fl.Tunable] = {"portion": fl.Log(1e-3, 0.1)}
    portion: float = 0.5


class TunesNoField(Base):
    tunable: ClassVar[fl.Tunable] = {"portion": fl.Log(1e-3, 0.1)}


@dataclass(frozen=True, kw_only=True)
class Unwritable(Base):
    """Its hyper-parameter is no plain value."""

    name: ClassVar[str] = "unwritable"
    scales: Any = range(3)


def broken_by(method: Any, **needs: Any) -> set[str]:
    """The names of the checks that a method fails."""
    case = MethodCase.of(method, **needs)
    names = set()
    for check in CHECKS:
        try:
            check(case)
        except Exception:
            names.add(check.__name__)
    return names


@pytest.mark.parametrize(
    ("method", "check"),
    [
        (Lazy, "check_one_round_trains"),
        (Forgetful(shared="*"), "check_clients_receive_better_models"),
        (KeepsOnItself, "check_resumed_equals_straight"),
        (CountsVisits, "check_order_and_evaluation_change_nothing"),
        (DrawsElsewhere, "check_order_and_evaluation_change_nothing"),
        (WritesIntoTheMessage, "check_messages_are_not_modified"),
        (ChangesStateInATest, "check_evaluation_changes_no_state"),
        (KeepsACopy, "check_personal_tensors_never_leave"),
        (DividesByRowsLessOne, "check_a_client_with_one_sample"),
        (TurnsAway, "check_a_newcomer_joins"),
        (TunesTooFar, "check_what_is_tuned_can_be_built"),
        (BeginsOutside, "check_what_is_tuned_can_be_built"),
        (TunesNoField, "check_what_is_tuned_can_be_built"),
    ],
)
def test_a_broken_rule_is_found(method: Any, check: str) -> None:
    assert check in broken_by(method)


def test_a_method_may_keep_what_it_sent_if_it_says_so() -> None:
    """On its class, or to whoever checks it; a sum inherits it from its parts."""
    rule = "check_personal_tensors_never_leave"
    assert rule not in broken_by(SaysSo)
    assert rule not in broken_by(KeepsACopy, keeps_what_it_sent=("broken",))
    assert MethodCase.of("fedavg + control_variates").keeps_what_it_sent == {"control_variates"}


def test_an_error_names_method_check_and_rule() -> None:
    with pytest.raises(ContractBroken) as error:
        check_method(KeepsACopy, engines=())
    (sentence,) = str(error.value).splitlines()
    assert sentence.startswith(
        "broken breaks check_personal_tensors_never_leave: 'Nothing leaves a client that the method"
        " keeps there.' Client 0, round 1 (train) sends model/"
    )
    assert sentence.endswith("if that is the method's design, say why in `keeps_what_it_sent`.")


def test_all_broken_rules_are_told_and_errors_quoted() -> None:
    with pytest.raises(ContractBroken) as error:
        check_method(TurnsAway, engines=())
    lines = str(error.value).splitlines()
    assert len(lines) > 1
    assert any("check_a_newcomer_joins" in line and "It raised" in line for line in lines)


def test_hyper_parameters_that_cannot_be_written() -> None:
    register(Unwritable)
    try:
        assert "check_text_gives_the_method_back" in broken_by(Unwritable)
    finally:
        del register._entries["unwritable"], register._squashed[squash("unwritable")]


@pytest.mark.parametrize(
    "method", ["fedper", fl.FedPer(), fl.FedPer, "proximal", fl.Proximal(), fl.DBE()]
)
def test_expressions_objects_classes_terms_and_recipes(method: Any) -> None:
    case = MethodCase.of(method)
    assert case.registered
    CHECKS[0](case)


def test_training_settings_of_a_method_are_its_own() -> None:
    assert MethodCase.of(fl.FedAvg(opt=fl.Opt(lr=0.3))).method.opt.lr == 0.3


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(UnknownName, match="unknown engine to check 'pol'; did you mean 'pool'"):
        check_method("fedavg", engines=("pol",))


def test_every_check_has_a_rule() -> None:
    def rule(check: Check) -> str:
        return (check.__doc__ or "").split("\n\n")[0].strip()

    assert all(rule(check).endswith(".") for check in CHECKS)
    assert len({check.__name__ for check in CHECKS}) == len(CHECKS)


def test_one_test_for_each_rule_in_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        dedent(
            """
            from fedloom.testing import parametrize_with_checks

            @parametrize_with_checks("fedper", engines=("pool", "flower"))
            def test_contract(check):
                check()
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "test_contract[check_one_round_trains]" in done.stdout
    assert f"{len(CHECKS) + 2} tests collected" in done.stdout
