"""A known data set by name, or with options: `emnist(subset=letters, classes=[A, B])`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedloom.data.hub import KNOWN
from fedloom.data.options import Options
from fedloom.errors import BadInput
from fedloom.expression import parse_one
from fedloom.registry import squash

EMBEDDED = "digits"
_NAMES = {squash(name): name for name in (EMBEDDED, *KNOWN)}
_OPTIONS = ("subset", "classes", "vocabulary", "positions")


def known_name(text: str, options: Options) -> tuple[str, Options] | None:
    """The data set a text names, and the options with those of the text in their place; None
    where it names none.

    >>> known_name("Tiny-ImageNet", Options())[0]
    'tiny_imagenet'
    >>> known_name("emnist(subset=letters)", Options())[1].subset
    'letters'
    """
    if squash(text) in _NAMES:
        return _NAMES[squash(text)], options
    try:
        call = parse_one(text)
    except BadInput:
        return None  # a path
    name = _NAMES.get(squash(call.name))
    if name is None:
        return None
    if call.args or not set(call.kwargs) <= set(_OPTIONS):
        raise BadInput(f"data {text!r}: a known data set takes only {', '.join(_OPTIONS)} by name")
    chosen: dict[str, Any] = dict(call.kwargs)
    if "classes" in chosen:
        chosen["classes"] = Options.several(chosen["classes"])
    return name, replace(options, **chosen)
