"""What a diagnostic found, as a line of `diagnostics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

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

When = Literal["before", "after", "final", "both"]
"""The model as received, after the next local training, as adapted at the end; or before and after
in one line."""


@dataclass(frozen=True)
class Finding:
    """One measure of one round, of one layer where it has one, in plain values."""

    round: int
    name: str
    snapshot: When
    layer: str | None
    data: str
    settings: dict[str, Any]
    result: dict[str, Any]

    @property
    def skipped(self) -> str | None:
        """Why there is no number, if there is none."""
        return self.result.get("skipped")

    def as_record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


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
