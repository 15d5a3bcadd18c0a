"""Numbers of paper and measurement as text, for the terminal and for the page."""

from __future__ import annotations

from fedloom.launch.tables import OverSeeds
from fedloom.reproduce.comparison import Line
from fedloom.reproduce.format import Printed

NOTHING = "-"


def number(value: float) -> str:
    """Two digits behind the point, and none of a count.

    >>> number(91.8349), number(582026.0)
    ('91.83', '582026')
    """
    return f"{value:.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.2f}"


def paper_number(printed: Printed | None) -> str:
    """As the paper prints it."""
    if printed is None:
        return NOTHING
    spread = "" if printed.deviation is None else f" ± {number(printed.deviation)}"
    return f"{number(printed.value)}{spread}"


def our_number(ours: OverSeeds | None) -> str:
    """Mean and deviation over seeds."""
    if ours is None:
        return NOTHING
    spread = "" if ours.std is None else f" ± {number(ours.std)}"
    return f"{number(ours.mean)}{spread}"


def difference(line: Line) -> str:
    """Ours minus the paper's, with its sign."""
    value = line.difference
    return NOTHING if value is None else f"{'+' if value >= 0 else '-'}{number(abs(value))}"


def verdict(line: Line) -> str:
    """Whether both agree."""
    return {True: "yes", False: "no", None: NOTHING}[line.inside]


def rounds_run(line: Line) -> str:
    """With the number of seeds."""
    if line.rounds is None:
        return NOTHING
    return f"{line.rounds} ({line.seeds} seed{'s' if line.seeds > 1 else ''})"
