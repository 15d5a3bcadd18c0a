"""Is a value in an expression of the type that the argument's annotation names?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from fedloom.errors import BadInput


def argument_types(entry: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of what a function or class takes, as types and not as text.

    One that cannot be resolved (its name is imported for type checkers only) is left out.
    """
    if not isinstance(entry, type):
        return _resolved(getattr(entry, "__annotations__", {}), getattr(entry, "__module__", ""))
    types: dict[str, Any] = {}
    for base in reversed(entry.__mro__):
        own = base if is_dataclass(base) else vars(base).get("__init__")
        types |= _resolved(getattr(own, "__annotations__", {}), base.__module__)
    return types


def _resolved(annotations: dict[str, Any], module: str) -> dict[str, Any]:
    """Annotations of one module, each by itself, so that one bad name does not spoil the others."""
    names = vars(sys.modules[module]) if module in sys.modules else {}
    types: dict[str, Any] = {}
    for name, annotation in annotations.items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            types |= get_type_hints(holder, globalns=names, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError):
            continue
    return types


def fitted(value: Any, annotation: Any) -> Any:
    """The value as the argument takes it; `BadInput`, the end of a sentence, where it does not fit.

    A value of the type is passed on as it was written: a whole number is a float too, a truth
    value is no number. Otherwise a list may become a tuple or list and a word a path, as JSON
    values do; the text "1" never becomes a number. Where "none" is one of the words that are taken,
    a bare `none` is that word.

    >>> fitted(1, float), fitted((1, 2), list[int]), fitted(None, Literal["none", "batch"])
    (1, [1, 2], 'none')
    """
    adapter = _adapter(annotation)
    if adapter is None:
        return value
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as e:
        problem = e
    else:
        return value
    if value is None and "none" in (_words(annotation) or ()):
        return "none"
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError, ValueError):
        raise BadInput(_misfit(value, annotation, problem)) from None


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """None for a type that pydantic cannot check."""
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


def _misfit(value: Any, annotation: Any, problem: ValidationError) -> str:
    if get_origin(annotation) is Annotated:  # a bound, which pydantic words well
        reason = problem.errors()[0]["msg"].lower().replace("input should", "it should")
        return f"will not do: {reason}"
    if (items := _items(annotation)) is not None:
        example = f"; write [{value!r}]" if not isinstance(value, tuple) else ""
        return f"is not a list of {type_name(items)}{example}"
    words = _words(annotation)
    if words is None:
        return f"is not of type {type_name(annotation)}"
    choices = ["none" if word is None else repr(word) for word in words]
    listed = " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
    return f"is unknown; use {listed}"


def _items(annotation: Any) -> Any:
    """The type of the items of a list of any length; None of any other type."""
    of = get_args(annotation)
    if get_origin(annotation) in (list, Sequence) or (of[1:] == (...,)):
        return of[0]
    return None


def _words(annotation: Any) -> list[Any] | None:
    """The values of a `Literal`, with None where that is allowed too; None of any other type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        of_each = [[None] if t is NoneType else _words(t) for t in get_args(annotation)]
        if any(words != [None] for words in of_each) and None not in of_each:
            return [word for words in of_each for word in words or ()]
    return None


def type_name(annotation: Any) -> str:
    """A type as one writes it.

    >>> from typing import Optional
    >>> type_name(Optional[float]), type_name(tuple[int, ...]), type_name(Literal["a"] | None)
    ('float | None', 'tuple[int, ...]', "Literal['a'] | None")
    """
    if annotation is NoneType:
        return "None"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(type_name, get_args(annotation)))
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")
