"""One paper, one file. A new method is a new file here with a registered class or recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import reduce
from inspect import signature
from typing import Any

from fedloom.argument_types import argument_types, fitted
from fedloom.core.method import Method
from fedloom.core.phase import Opt
from fedloom.core.server_optimizers import ServerOpt
from fedloom.core.settings import OPT_KEYS, SERVER_KEYS
from fedloom.core.term import Term
from fedloom.errors import BadInput, suggestion
from fedloom.expression import Call, parse
from fedloom.registry import Registry

register = Registry("method", "fedloom.methods", "fedloom.methods")
"""Decorator and look-up of methods, recipes (functions that return one) and terms."""

_NOT_WRITTEN = ("opt", "server", "terms")
"""Fields of a method that an expression does not name; the settings within the first two are
written each by its own key, as in a configuration."""
_SETTINGS = {key: ("opt", field) for key, field in OPT_KEYS.items()}
_SETTINGS |= {key: ("server", field) for key, field in SERVER_KEYS.items()}
"""Configuration key -> where it stands in a method."""


def parse_method(text: str) -> Method:
    """A method from its expression: one method, then terms.

    >>> parse_method("fedavg + proximal(mu=0.5)").terms
    (Proximal(mu=0.5),)
    """
    calls = parse(text)
    first, *terms = [_build(call) for call in calls]
    if not isinstance(first, Method):  # a term, or a recipe that stands for several
        raise BadInput(f"{text!r} begins with the term {calls[0].name!r}; begin with a method")
    return reduce(Method.__add__, terms, first)


def written_arguments(text: str) -> dict[str, frozenset[str]]:
    """Part -> the arguments that an expression writes for it; all parts of a recipe have those of
    the recipe's call.

    >>> written_arguments("fedprox(0.01) + dbe")["proximal"]
    frozenset({'mu'})
    """
    by_part: dict[str, frozenset[str]] = {}
    for call in parse(text):
        built: Any = _build(call)
        parts = built.parts if isinstance(built, Method) else built
        by_place = signature(register[call.name]).bind_partial(*call.args).arguments
        names = frozenset([*by_place, *call.kwargs])
        by_part |= {part.name: names for part in (parts if isinstance(parts, tuple) else (parts,))}
    return by_part


def _build(call: Call) -> Term:
    """A part; training settings among a method's arguments become its own.

    An argument that the method itself has under such a name keeps its meaning.
    """
    entry = register[call.name]
    parameters = [p for p in signature(entry).parameters if p not in _NOT_WRITTEN]
    is_term = isinstance(entry, type) and not issubclass(entry, Method)
    known = parameters if is_term else [*parameters, *_SETTINGS]
    for key in call.kwargs:
        if key in _NOT_WRITTEN:
            raise BadInput(
                f"{call.name} does not take {key!r} in an expression; write its settings by name,"
                " for instance lr=0.1"
            )
        if key not in known:
            raise BadInput(f"method {call.name!r} has no argument {key!r}" + suggestion(key, known))
    settings = {k: v for k, v in call.kwargs.items() if k not in parameters}
    arguments = {k: v for k, v in call.kwargs.items() if k not in settings}
    part: Term = register.build(Call(call.name, call.args, arguments))
    return _with_settings(call.name, part, settings) if settings else part


def _with_settings(name: str, part: Term, settings: Mapping[str, Any]) -> Method:
    if not isinstance(part, Method):
        raise BadInput(
            f"{name} is a term and has no {next(iter(settings))!r}; write it with the method"
        )
    types = {"opt": argument_types(Opt), "server": argument_types(ServerOpt)}
    own: dict[str, dict[str, Any]] = {"opt": {}, "server": {}}
    for key, value in settings.items():
        where, field = _SETTINGS[key]
        try:
            own[where][field] = fitted(value, types[where][field])
        except BadInput as e:
            raise BadInput(f"method {name!r}: {key} = {value!r} {e}") from None
    return replace(
        part, opt=part.opt.with_own(own["opt"]), server=part.server.with_own(own["server"])
    )


def describe(method: Method, full: bool = False) -> str:
    """The expression that gives the same method back; `full` writes defaults out too.

    Of training settings it has the method's own, and not the run's.

    >>> describe(parse_method("fedprox(mu=0.5, lr=0.1)"))
    'fedavg(lr=0.1) + proximal(mu=0.5)'
    """
    return " + ".join(str(_written(part, full)) for part in method.parts)


def _written(part: Term, full: bool) -> Call:
    arguments = {
        f.name: getattr(part, f.name)
        for f in fields(part)
        if f.name not in _NOT_WRITTEN and (full or getattr(part, f.name) != _default(f))
    }
    if isinstance(part, Method):
        arguments |= _own_settings(part)
    return Call(part.name, (), arguments)


def _own_settings(method: Method) -> dict[str, Any]:
    """The method's own training settings by key, but for those whose key is an argument of its."""
    opt, server = _own(method)
    own = {"opt": opt, "server": server}
    arguments = {f.name for f in fields(method)}
    return {
        key: own[of][name]
        for key, (of, name) in _SETTINGS.items()
        if name in own[of] and key not in arguments
    }


def _own(method: Method) -> tuple[dict[str, Any], dict[str, Any]]:
    """The method's own fields of `opt` and of `server`."""
    defaults: dict[str, Any] = {f.name: _default(f) for f in fields(method)}
    return method.opt.own(defaults["opt"]), method.server.own(defaults["server"])


def default_opt(method: Method) -> Opt:
    """How clients train where a method of this class, and the run, leave it open."""
    (opt,) = (_default(f) for f in fields(method) if f.name == "opt")
    assert isinstance(opt, Opt)
    return opt


def with_run_settings(method: Method, values: Mapping[str, Any]) -> Method:
    """The method with a run's settings, by key, for what it leaves open; None: not set."""
    opt, server = _own(method)

    def of(keys: Mapping[str, str]) -> dict[str, Any]:
        return {name: values[key] for key, name in keys.items() if values[key] is not None}

    return replace(
        method,
        opt=method.opt.filled(of(OPT_KEYS), opt),
        server=method.server.filled(of(SERVER_KEYS), server),
    )


def training_settings(method: Method) -> dict[str, Any]:
    """All training settings of a method by key, wherever they come from."""
    return {key: getattr(getattr(method, of), name) for key, (of, name) in _SETTINGS.items()}


def _default(f: Field[object]) -> object:
    return f.default_factory() if f.default_factory is not MISSING else f.default
