"""The list of all diagnostics: one for each file in `fedloom.diagnose.diagnostics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedloom.diagnose import diagnostics as package
from fedloom.diagnose.diagnostic import Diagnostic, Reading
from fedloom.errors import BadInput, UnknownName
from fedloom.record import Finding


@cache
def diagnostics() -> Mapping[str, Diagnostic[Any]]:
    """Every diagnostic by its name, in order."""
    names = [module.name for module in iter_modules(package.__path__)]
    every: list[Diagnostic[Any]] = [
        import_module(f"{package.__name__}.{name}").DIAGNOSTIC for name in names
    ]
    return {one.name: one for one in sorted(every, key=lambda one: one.order)}


def read(finding: Finding) -> Reading[Any]:
    """A finding that was not skipped, with its result as an object instead of plain values."""
    known = diagnostics()
    if finding.name not in known:
        raise UnknownName("diagnostic", finding.name, known)
    return known[finding.name].read(finding)


def chosen(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names of diagnostics in order, from a list or a text with commas; None: all.

    >>> chosen("separation, cka")
    ('cka', 'separation')
    """
    known = diagnostics()
    if names is None:
        return tuple(known)
    parts = names.split(",") if isinstance(names, str) else names
    words = {part.strip() for part in parts} - {""}
    if not words:
        raise BadInput(f"no diagnostic is named; there are: {', '.join(known)}")
    for word in sorted(words - known.keys()):
        raise UnknownName("diagnostic", word, known)
    return tuple(name for name in known if name in words)
