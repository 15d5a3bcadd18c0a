"""One paper, one file. A new method is a new file here with a registered class or recipe."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from functools import reduce
from inspect import signature

from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.expression import Call, literal, parse
from fedloom.registry import Registry

register = Registry("method", "fedloom.methods")
"""Decorator and look-up of methods, recipes (functions that return one) and terms."""

_NOT_WRITTEN = ("opt", "terms")
_PLAIN: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}
_CHOICE = re.compile(r"Literal\[(.*)\]( \| None)?")


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
    """A part with arguments of the types it declares; training settings are the run's."""
    entry = register[call.name]
    taken = [p for p in signature(entry).parameters.values() if p.name not in _NOT_WRITTEN]
    given = dict(zip([p.name for p in taken], call.args, strict=False)) | call.kwargs
    for argument in taken:
        if argument.name in given and not _fits(given[argument.name], argument.annotation):
            raise BadInput(
                f"{call.name}: {argument.name} = {given[argument.name]!r} is not of type"
                f" {_type_name(argument.annotation)}"
            )
    for key in given:
        if key in _NOT_WRITTEN:
            raise BadInput(f"{call.name} does not take {key!r} in an expression; leave it out")
    part: Term = register.build(call)
    return part


def _fits(value: object, annotation: object) -> bool:
    """Is it of the declared type, as far as that is a plain one or a choice of words? Whole
    numbers are floats too."""
    if choice := _CHOICE.fullmatch(_type_name(annotation)):
        return value in literal(f"({choice[1]},)") or (value is None and bool(choice[2]))
    names = {name.strip() for name in _type_name(annotation).split("|")}
    if not names <= _PLAIN.keys():
        return True
    return type(value) in {kind for name in names for kind in _PLAIN[name]}


def _type_name(annotation: object) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


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
