"""A frozen body is run once per fit, and only where nothing could tell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from fedloom.core.method import Method
from fedloom.core.net import Net
from fedloom.core.phase import Opt, Phase
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.models.gaussian import Gaussian, Sample
from helpers import digits, run


class Counted(torch.nn.Linear):
    """Counts the rows it was run on."""

    rows = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counted.rows += len(x)
        return super().forward(x.flatten(1))


@dataclass(frozen=True, kw_only=True)
class HeadOnly(Method):
    name: ClassVar[str] = "head_only"
    train_all: bool = False
    then_all: bool = False
    """Another phase could train the body, and takes no step."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        head = Phase("head", "*" if self.train_all else "head.*", epochs=5)
        return (head, Phase("all", epochs=0)) if self.then_all else (head,)


@dataclass(frozen=True)
class Watching(Term):
    name: ClassVar[str] = "watching"

    def loss(self, b: Any, s: Any) -> float:
        return 0.0


@dataclass(frozen=True)
class Doubling(Term):
    """Changes inputs, as Mixup does."""

    name: ClassVar[str] = "doubling"

    def inputs(self, b: Any, s: Any) -> None:
        b.x = 2 * b.x


def net(*between: torch.nn.Module) -> Net:
    torch.manual_seed(0)
    stages = {f"between{i}": m for i, m in enumerate(between)}
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 10))
    made = Net((1, 8, 8), body=Counted(64, 8), **stages, head=head)
    made.shape_of("head")  # worked out once, so that it is not counted below
    return made


def rows_of_body(method: Method, made: Net) -> int:
    """Rows through the body in one round of one client with 20 training rows."""
    program = Program(replace(method, opt=Opt(lr=0.1, batch=5)), made, 1, seed=0)
    Counted.rows = 0
    run(program, digits(((0, 1), 20)), 1)
    return Counted.rows


def test_a_frozen_body_sees_every_row_once_in_five_epochs() -> None:
    """20 rows, 5 epochs: 100 rows through a body in training, 20 through a frozen one."""
    assert rows_of_body(HeadOnly(train_all=True), net()) == 100
    assert rows_of_body(HeadOnly(), net()) == 20


@pytest.mark.parametrize("term", [Watching(), Doubling()])
def test_a_term_that_reads_or_changes_every_batch_turns_it_off(term: Term) -> None:
    assert rows_of_body(HeadOnly(then_all=True) + term, net()) == 100


def test_but_a_term_that_reads_every_batch_reads_what_a_body_gives_that_nobody_trains() -> None:
    assert rows_of_body(HeadOnly() + Watching(), net()) == 20
    assert rows_of_body(HeadOnly() + Doubling(), net()) == 100


def test_what_draws_is_drawn_anew_at_every_step() -> None:
    """body and Gaussian are fixed, the sampling layer behind them is not."""
    made = net(Gaussian(8, 4), Sample(2))
    assert made.draws("between1")
    assert not made.draws("between0")
    program = Program(replace(HeadOnly(), opt=Opt(lr=0.1, batch=5)), made, 1, seed=0)
    seen: list[torch.Tensor] = []
    sample = program.nets[0].get_submodule("between1")
    sample.register_forward_hook(lambda module, args, out: seen.append(out))
    Counted.rows = 0
    run(program, digits(((0, 1), 20)), 1)
    assert Counted.rows == 20
    assert len(seen) == 20  # 4 batches in 5 epochs
    assert all(not torch.equal(seen[0], other) for other in seen[1:])


def test_the_result_is_that_of_running_it_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(replace(HeadOnly(), opt=Opt(lr=0.1, batch=5)), net(), 1, seed=0)
    quick = run(program, digits(((0, 1), 20)), 1).server["model"]
    monkeypatch.setattr("fedloom.core.site.FIXED_NUMBERS", 0)
    slow = run(program, digits(((0, 1), 20)), 1).server["model"]
    for key, value in slow.items():
        torch.testing.assert_close(quick[key], value)
