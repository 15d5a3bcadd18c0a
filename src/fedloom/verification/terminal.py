"""A verification on a terminal: what was checked, and what came out."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from fedloom.errors import BadInput
from fedloom.verification.findings import SUBJECTS, Verification

MOST_SHOWN = 8
"""Differences that are printed; all are in the JSON."""


def verification_table(result: Verification) -> Table:
    """What was recorded, what of it was checked, and what differed."""
    table = Table(title=f"{result.run}, digest {result.digest[:16]}")
    table.add_column("what")
    for head in ("recorded", "checked", "share", "differ"):
        table.add_column(head, justify="right")
    for subject, name in SUBJECTS.items():
        recorded, checked = result.recorded[subject], result.checked[subject]
        share = f"{100 * checked / recorded:.3g} %" if recorded else "-"
        differ = sum(difference.subject == subject for difference in result.differences)
        table.add_row(name, str(recorded), str(checked), share, str(differ))
    return table


def verdict(result: Verification) -> Text:
    """What came out, in sentences."""
    lines = [*result.remarks, result.sentence]
    shown = result.differences[1:MOST_SHOWN]
    return Text("\n".join([*lines, *(f"also {difference}" for difference in shown)]))


def numbers(written: str | None, what: str) -> set[int] | None:
    """`1-3,7` as numbers; None: all.

    >>> sorted(numbers("1-3,7", "rounds"))
    [1, 2, 3, 7]
    """
    if written is None:
        return None
    chosen: set[int] = set()
    for word in written.split(","):
        first, dash, last = word.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadInput(f"{what} are numbers such as 3 or 1-10,15 and not {written!r}")
        chosen.update(range(int(first), int(last or first) + 1))
    return chosen
