"""What there is, and what each thing says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rich.table import Table

from fedloom.core.evaluate import PROTOCOLS
from fedloom.core.method import Method
from fedloom.core.term import Term
from fedloom.data import augmentations, modifiers, partitions, shifts, splits
from fedloom.data.load import names as data_names
from fedloom.errors import UnknownName
from fedloom.methods import register
from fedloom.models import models
from fedloom.registry import Registry

Entry = dict[str, str]


def catalogue(kind: str) -> list[Entry]:
    """Every entry of a kind: its name, what it is, its first line."""
    if kind not in _KINDS:
        raise UnknownName("kind of thing to list", kind, _KINDS)
    return _KINDS[kind]()


def catalogue_table(kind: str, entries: list[Entry]) -> Table:
    """The same, for a terminal."""
    table = Table(title=kind)
    for column in entries[0]:
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(*entry.values())
    return table


def page(name: str) -> str:
    """A method's or term's docstring and the defaults of its hyper-parameters."""
    entry = register[name]
    return f"{register.canonical(name)}{_signature(entry)}\n\n{inspect.getdoc(entry)}"


def _signature(entry: Callable[..., Any]) -> str:
    hidden = {"opt", "terms"}
    if isinstance(entry, type):
        shown = [f"{f.name}={f.default!r}" for f in fields(entry) if f.name not in hidden]
        return f"({', '.join(shown)})"
    return str(inspect.signature(entry)).split(" ->")[0]


def _methods() -> list[Entry]:
    return [
        {"name": name, "is a": _role(register[name]), "shares": _shares(register[name])}
        | {"what it does": _first_line(register[name])}
        for name in register
    ]


def _role(entry: Callable[..., Any]) -> str:
    if not isinstance(entry, type):
        return "recipe"
    return "method" if issubclass(entry, Method) else "term"


def _shares(entry: Callable[..., Any]) -> str:
    """The pattern of model tensors that may leave a client."""
    if isinstance(entry, type) and not issubclass(entry, Method):
        return ""
    made: Term = entry()
    return made.shared or "nothing" if isinstance(made, Method) else ""


def _registry(registry: Registry) -> Callable[[], list[Entry]]:
    return lambda: [{"name": n, "what it does": _first_line(registry[n])} for n in registry]


def _partitions() -> list[Entry]:
    return _registry(partitions)() + [
        {**entry, "what it does": f"(+) {entry['what it does']}"}
        for entry in _registry(modifiers)()
    ]


def _data() -> list[Entry]:
    return [{"name": name} for name in data_names()]


def _protocols() -> list[Entry]:
    keys = ("model", "moment", "clients", "split", "on", "select", "average")
    return [
        {"name": name} | {key: str(getattr(protocol, key)) for key in keys}
        for name, protocol in PROTOCOLS.items()
    ]


def _first_line(entry: Callable[..., Any]) -> str:
    return (inspect.getdoc(entry) or "").split("\n")[0]


_KINDS: dict[str, Callable[[], list[Entry]]] = {
    "methods": _methods,
    "models": _registry(models),
    "data": _data,
    "partitions": _partitions,
    "shifts": _registry(shifts),
    "splits": _registry(splits),
    "augmentations": _registry(augmentations),
    "protocols": _protocols,
}
