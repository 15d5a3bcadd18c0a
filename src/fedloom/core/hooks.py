"""The hooks a class of a user may override: a misspelt one is refused when the class is defined.

A *frame* is a class that declares hooks (`Term`, `Method`); all other parts are checked against the
frames they inherit from. Without this, `aggregte` would never be called and nobody would notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from types import FunctionType

from fedloom.errors import BadInput

NEAR = 0.6
"""How alike a function and a hook are (difflib's ratio) for the hook to be suggested."""
NEARLY_THE_SAME = 0.85
"""The same for settings, where only a likely misspelling is refused: others are the user's own."""

_FUNCTIONS = (FunctionType, staticmethod, classmethod)
_PROPERTIES = (property, cached_property)


def declared(frames: Sequence[type]) -> dict[str, object]:
    """Every public name that the frames declare, with what is there: functions, properties,
    defaults, or None for a name that has only a type."""
    names: dict[str, object] = {}
    for frame in reversed(frames):
        names |= dict.fromkeys(inspect.get_annotations(frame)) | vars(frame)
    return {name: value for name, value in names.items() if not name.startswith("_")}


def hooks(frames: Sequence[type]) -> frozenset[str]:
    """Names of the functions and properties that the frames declare."""
    return frozenset(
        name
        for name, value in declared(frames).items()
        if isinstance(value, (*_FUNCTIONS, *_PROPERTIES))
    )


def check_part(part: type, frames: Sequence[type]) -> None:
    """Refuse a class whose hooks the core would not call, or not with these arguments."""
    whose = f"{frames[0].__name__.lower()} {getattr(part, 'name', part.__name__)!r}"
    known = declared(frames)
    data = [name for name, value in known.items() if not isinstance(value, _FUNCTIONS)]
    for name, value in _own(part, frames[-1]):
        hook = known.get(name)
        if isinstance(hook, FunctionType):
            _check_function(whose, name, value, hook)
        elif isinstance(hook, _PROPERTIES) and isinstance(value, FunctionType):
            raise BadInput(f"{whose}: {name} is a property; write @property above it")
        elif name not in known and isinstance(value, _FUNCTIONS):
            raise BadInput(f"{whose} defines {name}(), which is no hook{_advice(name, frames)}")
        elif name not in known and (near := get_close_matches(name, data, 1, NEARLY_THE_SAME)):
            raise BadInput(f"{whose} has {name!r}, which is nearly {near[0]!r}; is that meant?")


def _own(part: type, root: type) -> Iterator[tuple[str, object]]:
    """Public names of the class itself and of bases that are no parts and so were not checked."""
    for base in part.__mro__:
        if base is part or (base is not object and not issubclass(base, root)):
            # A name with a type is a setting, also where its value is a function.
            names = vars(base) | dict.fromkeys(inspect.get_annotations(base))
            yield from ((k, v) for k, v in names.items() if not k.startswith("_"))


def _check_function(whose: str, name: str, value: object, hook: FunctionType) -> None:
    expected = list(inspect.signature(hook).parameters)
    if not isinstance(value, _FUNCTIONS):
        if not callable(value):
            raise BadInput(
                f"{whose}: {name} is a hook, {_call(name, expected)}; give the setting another name"
            )
        return
    if isinstance(value, staticmethod):
        expected = expected[1:]
    function = value if isinstance(value, FunctionType) else value.__func__
    signature = inspect.signature(function)
    try:
        signature.bind(*expected)
    except TypeError:
        raise BadInput(
            f"{whose} defines {_call(name, signature.parameters)}, which the core calls with other"
            f" arguments; write {_call(name, expected)}"
        ) from None


def _advice(name: str, frames: Sequence[type]) -> str:
    if near := get_close_matches(name, sorted(hooks(frames)), 1, NEAR):
        return f"; did you mean {near[0]!r}?"
    kind = frames[0].__name__.lower()
    return f" of a {kind}; begin a helper's name with an underscore, as in _{name}()"


def _call(name: str, parameters: Sequence[str] | Mapping[str, object]) -> str:
    return f"{name}({', '.join(parameters)})"
