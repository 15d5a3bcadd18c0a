"""What a diagnostic found, as a line of `diagnostics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable

from fedloom.errors import BadInput, UnknownName

NAMES = (
    "mdl",
    "cka",
    "separation",
    "fisher",
    "drift",
    "overlap",
    "classifier_bias",
    "global_accuracy",
    "calibration",
    "tsne",
    "ellipses",
)
"""Every diagnostic of a run, in the order in which they are written."""


def chosen(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names of diagnostics, given one by one or with commas between them; None: all.

    >>> chosen("separation, cka")
    ('cka', 'separation')
    """
    if names is None:
        return NAMES
    given = names.split(",") if isinstance(names, str) else list(names)
    words = {word.strip() for word in given} - {""}
    if not words:
        raise BadInput(f"no diagnostic is named; there are: {', '.join(NAMES)}")
    for word in sorted(words - set(NAMES)):
        raise UnknownName("diagnostic", word, NAMES)
    return tuple(name for name in NAMES if name in words)
