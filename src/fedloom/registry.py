"""Names to things: one registry per kind, filled by a decorator and by installed packages."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import threading
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar
from weakref import WeakSet

from fedloom.argument_types import argument_types, fitted
from fedloom.errors import BadInput, UnknownName, suggestion
from fedloom.expression import Call

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("fedloom")
_announced: WeakSet[Registry] = WeakSet()
"""Registries of which installed packages may announce something."""


class Registry:
    """What a name in an expression means.

    A new file in the folder of `package` is registered by being there: a look-up imports the file
    of that name. Where this is not enough it imports all of them, and the installed packages that
    announce something under the entry point `group`. Look-ups ignore case, hyphens and underscores.
    """

    def __init__(self, kind: str, package: str | None = None, group: str | None = None) -> None:
        self.kind, self.group = kind, group
        self._package, self._discovered = package, False
        self._discovering = threading.RLock()
        self._under_way = False
        """Modules are being imported, and look names up themselves, in the thread that holds it."""
        self._entries: dict[str, Callable[..., Any]] = {}
        self._squashed: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        """What is wrong with an entry point, by the squashed name it announces."""
        if group is not None:
            _announced.add(self)

    def __call__(self, entry: F) -> F:
        """Decorator: register under `entry.name`, or the lower-case function or class name."""
        self.add(getattr(entry, "name", None) or entry.__name__.lower(), entry)
        return entry

    def add(self, name: str, entry: Callable[..., Any]) -> None:
        """Register under a name; the same definition, run again in a notebook, replaces itself."""
        taken = self._squashed.setdefault(squash(name), name)
        if taken != name or _origin(self._entries.get(name, entry)) != _origin(entry):
            raise BadInput(f"two {self.kind}s are called {taken!r}; rename one of them")
        self._entries[name] = entry

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._entries[self.canonical(name)]

    def __contains__(self, name: str) -> bool:
        if not self._is_own(name):
            self._discover()
        return squash(name) in self._squashed

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._entries))

    def canonical(self, name: str) -> str:
        """The registered spelling of a name."""
        if name in self:
            return self._squashed[squash(name)]
        for registry in tuple(_announced):  # a package may register several kinds of things
            registry._discover()
        if name in self:
            return self._squashed[squash(name)]
        if squash(name) in self._broken:
            raise BadInput(self._broken[squash(name)])
        raise UnknownName(self.kind, name, self._entries)

    def build(self, call: Call, **context: Any) -> Any:
        """Call the entry with the call's arguments; `context` fills the arguments it asks for."""
        return build(self.kind, self[call.name], call, **context)

    def _is_own(self, name: str) -> bool:
        """Does it stand for something of the package, as far as the file of that name tells? Then a
        plain run does without the time that it takes to import all the others."""
        if self._package is None or self._discovered:
            return False
        for file in _files(self._package):
            if squash(file) == squash(name):
                importlib.import_module(f"{self._package}.{file}")
        entry = self._entries.get(self._squashed.get(squash(name), ""))
        module = getattr(entry, "__module__", None) or ""
        if not module.startswith(f"{self._package}."):
            return False
        importlib.import_module(module)  # waits for another thread that is just importing it
        return True

    def _discover(self) -> None:
        """Import what there is, once; a thread that comes meanwhile waits for all of it."""
        if self._discovered:
            return
        with self._discovering:
            if self._under_way or self._discovered:
                return
            self._under_way = True
            try:
                if self._package is not None:
                    _import_all(self._package)
                for point in entry_points(group=self.group) if self.group is not None else ():
                    self._load(point)
                self._discovered = True
            finally:  # after an error the next look-up tries again
                self._under_way = False

    def _load(self, point: EntryPoint) -> None:
        """Register what a package announces; one that is broken must not break the others."""
        try:
            announced = point.load()
            if inspect.ismodule(announced):
                return  # its decorators ran
            if not any(announced is entry for entry in self._entries.values()):
                self.add(getattr(announced, "name", None) or point.name, announced)
        except Exception as e:  # whatever somebody's package raises when it is imported
            package = point.dist.name if point.dist is not None else point.module
            self._broken[squash(point.name)] = problem = (
                f"the package {package} announces the {self.kind} {point.name!r}, which cannot be"
                f" loaded ({type(e).__name__}: {e}); repair or uninstall it"
            )
            log.warning("%s", problem)


def build(kind: str, entry: Callable[..., Any], call: Call, **context: Any) -> Any:
    """Call something with a call's arguments, checked by its annotations."""
    signature = inspect.signature(entry)
    known = [p for p in signature.parameters if p not in context]
    for key in call.kwargs:
        if key not in known:
            raise BadInput(f"{kind} {call.name!r} has no argument {key!r}" + suggestion(key, known))
    args, kwargs = _checked(kind, entry, call, known)
    filled = {k: v for k, v in context.items() if k in signature.parameters}
    try:
        signature.bind(*args, **kwargs, **filled)
    except TypeError as e:
        filled_in = f"; a {kind} is given {', '.join(context)}" if context else ""
        raise BadInput(
            f"{kind} {call}: {e}; it takes {', '.join(known) or 'no arguments'}{filled_in}"
        ) from None
    return entry(*args, **kwargs, **filled)


def _checked(
    kind: str, entry: Callable[..., Any], call: Call, known: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """A call's arguments by place and by name, as the entry's annotations want them."""
    types = argument_types(entry) if call.args or call.kwargs else {}

    def checked(name: str, value: Any) -> Any:
        try:
            return fitted(value, types[name]) if name in types else value
        except BadInput as e:
            raise BadInput(f"{kind} {call.name!r}: {name} = {value!r} {e}") from None

    names = [*known, *[""] * len(call.args)]  # too many of them are refused later
    args = [checked(name, value) for name, value in zip(names, call.args, strict=False)]
    return args, {name: checked(name, value) for name, value in call.kwargs.items()}


@cache
def _files(package: str) -> tuple[str, ...]:
    """Names of the modules in its folder."""
    folder = importlib.import_module(package).__path__
    return tuple(module.name for module in pkgutil.iter_modules(folder))


def _import_all(package: str) -> None:
    for file in _files(package):
        importlib.import_module(f"{package}.{file}")


def _origin(entry: Callable[..., Any]) -> tuple[str, str] | int:
    """Where something is defined: equal for a definition that is run a second time."""
    name = getattr(entry, "__qualname__", "<locals>")
    return id(entry) if "<locals>" in name else (entry.__module__, name)


def squash(name: str) -> str:
    """A name without what look-ups ignore."""
    return name.lower().replace("_", "").replace("-", "")
