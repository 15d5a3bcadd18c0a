"""A method to be checked, and what it needs for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.phase import Opt
from fedloom.core.program import Program
from fedloom.core.term import Term
from fedloom.data import FederatedData
from fedloom.engines import Engine, make_engine
from fedloom.errors import BadInput
from fedloom.expression import parse
from fedloom.methods import default_opt, describe, parse_method, register
from fedloom.models import build_model
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.testing.federations import common_federation
from fedloom.testing.rounds import Played, play

CLIENTS = 4
ROUNDS = 3
OPT = Opt(lr=0.1, epochs=1, batch=8)
"""Local training of a method that says nothing else."""

Checkable = str | Term | type[Term] | Sequence[Term]
"""An expression, a method or term, a class of one, or the terms of a recipe."""


class ContractBroken(AssertionError):
    """A method does not do what every method must."""


def require(holds: bool, otherwise: str) -> None:
    """Break the contract with a sentence, unless something holds."""
    if not holds:
        raise ContractBroken(otherwise)


class Needs(TypedDict, total=False):
    """What a method may need to be checked; `check_method` says what each means."""

    model: str
    batch_norm_model: str
    rounds_to_learn: int
    keeps_what_it_sent: Sequence[str]


@dataclass(frozen=True)
class MethodCase:
    """A method on common ground: four clients of handwritten digits, a small MLP, three rounds."""

    method: Method
    expression: str
    model: str = "mlp(hidden=[16])"
    batch_norm_model: str = "mlp(hidden=[16], norm=batch)"
    rounds_to_learn: int = 5
    """Until what clients receive predicts better than at the start."""
    keeps_what_it_sent: frozenset[str] = frozenset()
    """Slices in which a client may keep the very values that it sent."""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Engines that are there already; others are started and closed by the check."""

    @classmethod
    def of(
        cls,
        method: Checkable,
        *,
        model: str = model,
        batch_norm_model: str = batch_norm_model,
        rounds_to_learn: int = rounds_to_learn,
        keeps_what_it_sent: Sequence[str] = (),
        engines: Mapping[str, Engine] | None = None,
    ) -> MethodCase:
        """A term, or several, is checked on FedAvg."""
        built = _built(method)
        default = default_opt(built)
        opt = replace(OPT, **default.own(Opt())) if built.opt == default else built.opt
        declared = {part.name for part in built.parts if part.keeps_what_it_sent}
        return cls(
            replace(built, opt=opt),
            describe(built),
            model,
            batch_norm_model,
            rounds_to_learn,
            frozenset({*keeps_what_it_sent, *declared}),
            engines or {},
        )

    @property
    def registered(self) -> bool:
        """Can the method be written as an expression?"""
        return all(
            part.name in register and register[part.name] is type(part)
            for part in self.method.parts
        )

    def program(self, clients: int = CLIENTS, model: str = "") -> Program:
        """Made from nothing every time: no object is shared between two calls."""
        net = build_model(model or self.model, (1, 8, 8), 10, seed=0)
        return Program(self.method_anew(), net, clients, seed=3)

    def method_anew(self) -> Method:
        """An equal method of new objects: what one of them kept to itself would be missed."""
        return replace(self.method, terms=tuple(replace(term) for term in self.method.terms))

    def experiment(self, out: str | None = None, **settings: Any) -> Experiment:
        """The same as a run would have it, with a newcomer."""
        config = RunConfig.checked(
            {"method": self.expression, "model": self.model, "newcomers": 1, "out": out, **settings}
        )
        return Experiment.build(config, self.method_anew(), self.data)

    @property
    def data(self) -> FederatedData:
        """The common ground."""
        return common_federation()

    @cached_property
    def straight(self) -> Played:
        """The plain run that all others are compared with."""
        program = self.program()
        return play(program, self.data, program.schedule(ROUNDS))

    @contextmanager
    def engine(self, name: str) -> Iterator[Engine]:
        """One that is there already, or one for this check alone."""
        if name in self.engines:
            yield self.engines[name]
            return
        engine = make_engine(name)
        try:
            yield engine
        finally:
            engine.close()


def training(program: Program) -> list[Plan]:
    """The rounds in which all clients train."""
    return [plan for plan in program.schedule(ROUNDS) if plan.kind == "train"]


def _built(method: Checkable) -> Method:
    if isinstance(method, str):
        first = register[parse(method)[0].name]
        is_method = (
            issubclass(first, Method) if isinstance(first, type) else isinstance(first(), Method)
        )
        return parse_method(method if is_method else f"fedavg + {method}")
    parts = method() if isinstance(method, type) else method
    if isinstance(parts, Method):
        return parts
    terms = tuple(parts) if isinstance(parts, Sequence) else (parts,)
    if not all(isinstance(term, Term) for term in terms):
        raise BadInput(
            f"{method!r} is not a method; give a method, a term, a class of one or an expression"
        )
    return parse_method("fedavg") + terms
