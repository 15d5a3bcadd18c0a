"""A composition made ready: what is refused, what is shared, who takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Phase
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.errors import BadInput
from helpers import mlp, same


class Plain(Term):
    name: ClassVar[str] = "plain"


class Picky(Term):
    name: ClassVar[str] = "picky"
    refuses: ClassVar[tuple[str, ...]] = ("plain", "stubborn")


class Stubborn(Method):
    name: ClassVar[str] = "stubborn"


class NeedsHead(Term):
    name: ClassVar[str] = "needs_head"
    requires: ClassVar[str] = "head.*"


class Stage(Term):
    """Inserts a stage of its own."""

    name: ClassVar[str] = "shift"

    def extend(self, net, clients):
        net.insert(self.name, nn.Linear(5, 5))


class SharedStage(Stage):
    name: ClassVar[str] = "shared_shift"
    keeps: ClassVar[str] = "shared"


def program(method: Method, clients: int = 3, seed: int = 0) -> Program:
    return Program(method, mlp(), clients, seed)


# ------------------------------------------------------------------ what is refused


def test_the_same_term_twice() -> None:
    with pytest.raises(BadInput, match="'plain' appears twice"):
        program(Method() + Plain() + Plain())


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (Method() + Plain() + Picky(), "picky and plain"),
        (Method() + Picky() + Plain(), "picky and plain"),
        (Stubborn() + Picky(), "picky and stubborn"),
    ],
)
def test_partners_that_refuse_each_other_are_named(method: Method, names: str) -> None:
    with pytest.raises(BadInput, match=f"{names} cannot be combined"):
        program(method)


def test_a_term_that_requires_shared_tensors_names_one_that_is_not() -> None:
    program(Method(shared="head.*") + NeedsHead())
    with pytest.raises(BadInput, match=r"needs_head needs 'head\.bias' to be shared"):
        program(Method(shared="* !head.bias") + NeedsHead())


@pytest.mark.parametrize("term", [Method(), "plain", 3])
def test_only_terms_are_added(term: object) -> None:
    with pytest.raises(BadInput, match="is not a term"):
        Method() + term


def test_a_sum_leaves_its_summands_alone() -> None:
    base = Method()
    one = base + Plain()
    two = one + Picky()
    assert [len(m.terms) for m in (base, one, two)] == [0, 1, 2]


def test_unlike_nets_must_agree_in_what_is_shared() -> None:
    nets = [mlp(hidden=5), mlp(hidden=6)]
    with pytest.raises(BadInput, match=r"differ in the shared tensor 'head\.weight'"):
        Program(Method(shared="head.weight"), nets, clients=2)
    prog = Program(Method(shared="head.bias"), nets, clients=3)
    assert [prog.net(cid).shape_of("body")[0] for cid in range(3)] == [5, 6, 5]


def test_an_unknown_weighting() -> None:
    with pytest.raises(BadInput, match="samples or uniform"):
        Method(weighting="by_size")


# ------------------------------------------------------------------ the net


def test_the_callers_net_is_not_extended() -> None:
    net = mlp()
    prog = Program(Method() + Stage(), net, clients=2)
    assert "shift" not in net.reads
    assert prog.nets[0].path_to("head") == ["body", "shift", "head"]
    assert prog.nets[0].owner == {"body": METHOD, "shift": "shift", "head": METHOD}


def test_extending_is_seeded_by_the_run_and_the_part_alone() -> None:
    torch.manual_seed(1)
    one = program(Method() + Stage())
    torch.manual_seed(2)
    again, with_more = program(Method() + Stage()), program(Method() + SharedStage() + Stage())
    other = program(Method() + Stage(), seed=1)
    start = one.nets[0].tree("shift.*")
    assert same(again.nets[0].tree("shift.*"), start)
    assert same(with_more.nets[0].tree("shift.*"), start)
    assert not same(other.nets[0].tree("shift.*"), start)


def test_shared_speaks_for_the_method_and_keeps_for_a_term() -> None:
    """Whatever the method's pattern says of a term's stage."""
    body = {"body.0.weight", "body.0.bias"}
    method = Method(shared="* !head.*") + Stage() + SharedStage()
    assert program(method).shared(0) == body | {"shared_shift.weight", "shared_shift.bias"}
    assert program(Method(shared="shift.*") + Stage()).shared(0) == frozenset()


def test_why_there_is_no_global_model() -> None:
    """A term's personal stage is no hindrance (it is at its initial value), a head is."""
    assert program(Method()).global_model_missing() == ""
    assert program(Method() + Stage()).global_model_missing() == ""
    assert "'head.bias'" in program(Method(shared="body.*")).global_model_missing()


# ------------------------------------------------------------------ the schedule


class Twice(Term):
    name: ClassVar[str] = "twice"
    before: ClassVar[tuple[str, ...]] = ("a", "b")
    after: ClassVar[tuple[str, ...]] = ("c",)


@dataclass(frozen=True, kw_only=True)
class Adapts(Method):
    @property
    def adapt(self) -> tuple[Phase, ...]:
        return (Phase(),)


def test_a_run_is_special_rounds_training_special_rounds_adaptation() -> None:
    plans = program(Adapts() + Twice(), clients=3, seed=7).schedule(2)
    assert [(p.t, p.kind, p.owner, p.cohort) for p in plans] == [
        (0, "special", "twice.a", "all"),
        (0, "special", "twice.b", "all"),
        (1, "train", "model", "sample"),
        (2, "train", "model", "sample"),
        (3, "special", "twice.c", "all"),
        (3, "adapt", "model", "all"),
    ]
    assert {(p.seed, p.clients) for p in plans} == {(7, 3)}
    assert len({p.key for p in plans}) == len(plans)


def test_cohorts() -> None:
    """round(0.5 * 5) = 2 clients, sorted, by seed and round; at least one; all where all are
    asked for. 0.29 of 100 clients are 29, though 0.29 * 100 is a little less."""
    prog = program(Method(), clients=5)
    drawn = [prog.cohort(Plan(t), 0.5) for t in range(1, 30)]
    assert all(len(c) == 2 and c == sorted(set(c)) for c in drawn)
    assert {cid for c in drawn for cid in c} == set(range(5))
    assert drawn == [prog.cohort(Plan(t), 0.5) for t in range(1, 30)]
    assert drawn != [program(Method(), 5, seed=1).cohort(Plan(t), 0.5) for t in range(1, 30)]
    assert len(prog.cohort(Plan(1), 1e-9)) == 1
    assert len(program(Method(), clients=100).cohort(Plan(1), 0.29)) == 29
    assert prog.cohort(Plan(1), 1.0) == prog.cohort(Plan(1, cohort="all"), 0.2) == list(range(5))


def test_a_shared_pattern_that_matches_nothing_is_a_misspelling() -> None:
    with pytest.raises(BadInput, match=r"'heads.\*' matches no tensor; the stages are body"):
        Program(Method(shared="body.* heads.*"), mlp(), 2)
