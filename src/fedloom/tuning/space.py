"""What is tuned of a method: names, ranges, and the method at a point of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.core.tunable import Log, Range
from fedloom.errors import BadInput, suggestion
from fedloom.methods import default_opt, parse_method, with_run_settings, written_arguments
from fedloom.runs.config import RunConfig

LR = "lr"
"""The learning rate of the clients, among the names of a space."""
SGD_RATES = Log(1e-3, 1)
ADAPTIVE_RATES = Log(1e-4, 1e-1)
"""Of optimisers that scale a gradient by its size: adam, adamw, adagrad, rmsprop."""


@dataclass(frozen=True)
class Space:
    """A method as it was written, and the ranges of what its writer left open.

    A hyper-parameter is called after its part, `proximal.mu`; the learning rate is `lr`.
    """

    method: Method
    ranges: Mapping[str, Range]
    default: Mapping[str, Any]
    """The values that the method has without tuning, the run's learning rate among them."""

    @classmethod
    def of(cls, written: str | Method, run: RunConfig, rates: Log | None = None) -> Space:
        """The space of a method in a run; `rates` goes before every declared range of `lr`."""
        if isinstance(written, str):
            method, fixed = parse_method(written), written_arguments(written)
        else:
            method, fixed = written, {}
        opt = with_run_settings(method, run.model_dump()).opt
        ranges: dict[str, Range] = {}
        default: dict[str, Any] = {}
        if LR not in method.opt.own(default_opt(method)):
            ranges[LR] = rates or _declared_rates(method, opt.name)
            default[LR] = opt.lr
        for part in method.parts:
            for name, where in open_fields(part, fixed.get(part.name, frozenset())).items():
                ranges[f"{part.name}.{name}"] = where
                default[f"{part.name}.{name}"] = getattr(part, name)
        return cls(method, ranges, default)

    def at(self, values: Mapping[str, Any]) -> Method:
        """The method with these values as its own."""
        own: dict[str, dict[str, Any]] = {part.name: {} for part in self.method.parts}
        for key, value in values.items():
            if key != LR:
                part, _, name = key.partition(".")
                own[part][name] = value
        terms = tuple(replace(term, **own[term.name]) for term in self.method.terms)
        method = replace(self.method, **own[self.method.name], terms=terms)
        if LR not in values:
            return method
        return replace(method, opt=method.opt.with_own({LR: values[LR]}))


def open_fields(part: Term, written: frozenset[str]) -> dict[str, Range]:
    """The declared fields of a part that still have their default and were not written."""
    defaults = {f.name: f.default for f in fields(part)}
    declared = {name: where for name, where in part.tunable.items() if not _is_rate(part, name)}
    for name in declared:
        if name not in defaults:
            raise BadInput(
                f"{part.name} declares {name!r} as tunable, which is none of its fields"
                + suggestion(name, defaults)
            )
    return {
        name: where
        for name, where in declared.items()
        if name not in written and getattr(part, name) == defaults[name]
    }


def _declared_rates(method: Method, optimizer: str) -> Range:
    """Where a method's learning rate lies under an optimiser; its declaration is for its own."""
    usual = SGD_RATES if optimizer == "sgd" else ADAPTIVE_RATES
    return method.tunable.get(LR, usual) if optimizer == default_opt(method).name else usual


def _is_rate(part: Term, name: str) -> bool:
    """`lr` of a method is the clients' learning rate; a term may have a field of that name."""
    return name == LR and isinstance(part, Method)
