"""Small runs of sums of parts: what every term is asked beside its own numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedloom.core.method import Method
from fedloom.core.net import METHOD
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Batch, Term
from fedloom.core.tree import Tree
from fedloom.methods import parse_method
from helpers import Played, finite, mlp, run, tables

OPT = Opt(lr=0.1, epochs=2, batch=4, momentum=0.5, weight_decay=1e-3)


def played(method: Method | str, rounds: int = 2, opt: Opt = OPT, norm: bool = True) -> Played:
    """Four clients of unlike size on a small net with BatchNorm."""
    method = parse_method(method) if isinstance(method, str) else method
    program = Program(replace(method, opt=opt), mlp(norm=norm), 4, seed=5)
    return run(program, tables(11, 12, 13, 20), rounds)


def model(method: Method | str, **how: Any) -> Tree:
    """The server's model after such a run."""
    return played(method, **how).server[METHOD]


def runs_with_fedbr_and_dbe(*parts: str) -> None:
    """One round of every sum, with all numbers finite."""
    first = " + ".join(parts)
    for sum_of in (f"{first} + fedbr", f"{first} + dbe", f"{first} + fedbr + dbe"):
        end = played(sum_of, rounds=1)
        assert finite(end.server), sum_of
        assert all(finite(answer.up.state) for answer in end.answers), sum_of


@dataclass(frozen=True)
class Watch(Term):
    """Writes down every batch as the loss sees it; changes nothing."""

    name: ClassVar[str] = "watch"
    seen: ClassVar[list[Batch]] = []

    def loss(self, b: Batch, s: Any) -> float:
        self.seen.append(replace(b))
        return 0.0
