"""One paper, one file. A new method is a new file here with a registered class or recipe."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from functools import reduce

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.expression import Call, parse
from fedloom.registry import Registry

register = Registry("method", "fedloom.methods", "fedloom.methods")
"""Decorator and look-up of methods, recipes (functions that return one) and terms."""

_NOT_WRITTEN = ("opt", "terms")


def parse_method(text: str) -> Method:
    """A method from its expression: one method, then terms.

    >>> parse_method("fedavg + proximal(mu=0.5)").terms
    (Proximal(mu=0.5),)
    """
    first, *terms = [_build(call) for call in parse(text)]
    if not isinstance(first, Method):
        raise BadInput(f"{text!r} begins with the term {first.name!r}; begin with a method")
    return reduce(Method.__add__, terms, first)


def _build(call: Call) -> Term:
    """A part; training settings are the run's and not an expression's."""
    for key in call.kwargs:
        if key in _NOT_WRITTEN:
            raise BadInput(f"{call.name} does not take {key!r} in an expression; leave it out")
    part: Term = register.build(call)
    return part


def describe(method: Method, full: bool = False) -> str:
    """The expression that gives the same method back; `full` writes defaults out too.

    >>> describe(parse_method("fedprox(mu=0.5)"))
    'fedavg + proximal(mu=0.5)'
    """
    return " + ".join(str(_written(part, full)) for part in method.parts)


def _written(part: Term, full: bool) -> Call:
    said = {
        f.name: getattr(part, f.name)
        for f in fields(part)
        if f.name not in _NOT_WRITTEN and (full or getattr(part, f.name) != _default(f))
    }
    return Call(part.name, (), said)


def _default(f: Field[object]) -> object:
    return f.default_factory() if f.default_factory is not MISSING else f.default
