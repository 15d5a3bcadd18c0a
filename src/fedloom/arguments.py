"""Is a value in an expression of the type that an argument declares?"""

from __future__ import annotations

import re

from fedloom.expression import literal

_PLAIN: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
    "None": (type(None),),
}
_CHOICE = re.compile(r"Literal\[(.*)\]( \| None)?")


def fits(value: object, annotation: object) -> bool:
    """As far as the type is a plain one, a choice of words, or either of them or None; whole
    numbers are floats too.

    >>> fits(1, "float | None"), fits("logit", 'Literal["logits"]'), fits(True, "int")
    (True, False, False)
    """
    if choice := _CHOICE.fullmatch(_written(annotation)):
        return value in literal(f"({choice[1]},)") or (value is None and bool(choice[2]))
    names = {name.strip() for name in _written(annotation).split("|")}
    if not names <= _PLAIN.keys():
        return True
    return type(value) in {kind for name in names for kind in _PLAIN[name]}


def expected(annotation: object) -> str:
    """What to say of a value that does not fit.

    >>> expected('Literal["pre", "post"]'), expected("float")
    ("is unknown; use 'pre' or 'post'", 'is not of type float')
    """
    if choice := _CHOICE.fullmatch(_written(annotation)):
        words = [*map(repr, literal(f"({choice[1]},)")), *(["none"] if choice[2] else [])]
        listed = " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
        return f"is unknown; use {listed}"
    return f"is not of type {_written(annotation)}"


def _written(annotation: object) -> str:
    """An annotation as it was written."""
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__name__", str(annotation))
