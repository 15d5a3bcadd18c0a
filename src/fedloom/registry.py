"""Names to things: one registry per kind, filled by a decorator."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fedloom.arguments import expected, fits
from fedloom.errors import BadInput, UnknownName, suggestion
from fedloom.expression import Call

F = TypeVar("F", bound=Callable[..., Any])


class Registry:
    """What a name in an expression means.

    `package` is imported module by module at the first look-up, so that a new file in the folder
    is registered by being there. Look-ups ignore case, hyphens and underscores.
    """

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, Callable[..., Any]] = {}
        self._squashed: dict[str, str] = {}

    def __call__(self, entry: F) -> F:
        """Decorator: register under `entry.name`, or the lower-case function or class name."""
        name = getattr(entry, "name", None) or entry.__name__.lower()
        taken = self._squashed.setdefault(_squash(name), name)
        if taken != name or self._entries.get(name, entry) is not entry:
            raise BadInput(f"two {self.kind}s are called {taken!r}; rename one of them")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._entries[self.canonical(name)]

    def __contains__(self, name: str) -> bool:
        self._discover()
        return _squash(name) in self._squashed

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._entries))

    def canonical(self, name: str) -> str:
        """The registered spelling of a name."""
        if name not in self:
            raise UnknownName(self.kind, name, self._entries)
        return self._squashed[_squash(name)]

    def build(self, call: Call, **context: Any) -> Any:
        """Call the entry with the call's arguments; `context` fills the arguments it asks for."""
        entry = self[call.name]
        signature = inspect.signature(entry)
        known = [p for p in signature.parameters if p not in context]
        for key in call.kwargs:
            if key not in known:
                raise BadInput(
                    f"{self.kind} {call.name!r} has no argument {key!r}" + suggestion(key, known)
                )
        self._check_types(call, [signature.parameters[name] for name in known])
        given = {k: v for k, v in context.items() if k in signature.parameters}
        try:
            signature.bind(*call.args, **call.kwargs, **given)
        except TypeError as e:
            raise BadInput(
                f"{self.kind} {call}: {e}; it takes {', '.join(known) or 'no arguments'}"
            ) from None
        return entry(*call.args, **call.kwargs, **given)

    def _check_types(self, call: Call, taken: list[inspect.Parameter]) -> None:
        written = dict(zip([p.name for p in taken], call.args, strict=False)) | call.kwargs
        for argument in taken:
            value = written.get(argument.name)
            if argument.name in written and not fits(value, argument.annotation):
                wanted = expected(argument.annotation)
                raise BadInput(f"{self.kind} {call.name!r}: {argument.name} = {value!r} {wanted}")

    def _discover(self) -> None:
        package, self._package = self._package, None
        if package is None:
            return
        try:
            found = importlib.import_module(package)
            for module in pkgutil.iter_modules(found.__path__):
                importlib.import_module(f"{package}.{module.name}")
        except BaseException:
            self._package = package  # or the next look-up would call half of the names unknown
            raise


def _squash(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
