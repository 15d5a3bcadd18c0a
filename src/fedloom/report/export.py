"""The report's comparison for other programs: CSV and LaTeX of all groups."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.errors import BadInput
from fedloom.launch.tables import per_method, to_csv, to_latex
from fedloom.report.groups import RunGroup


def csv_of(groups: Sequence[RunGroup]) -> str:
    """One line for every method; of several groups that do not compare, each named first."""
    ended = _ended(groups)
    if len(groups) == 1:
        return to_csv(ended[0].results)
    from pandas import concat

    frames = [per_method(group.results) for group in ended]
    for group, frame in zip(ended, frames, strict=True):
        frame.insert(0, "group", f"{groups.index(group) + 1}: {group.name}")
    return str(concat(frames).to_csv(index=False, lineterminator="\n"))


def latex_of(groups: Sequence[RunGroup]) -> str:
    """One table for every group; of several, with its name in a comment."""
    ended = _ended(groups)
    if len(groups) == 1:
        return to_latex(ended[0].results)
    return "\n".join(f"% {group.name}\n{to_latex(group.results)}" for group in ended)


def _ended(groups: Sequence[RunGroup]) -> list[RunGroup]:
    ended = [group for group in groups if group.results]
    if not ended:
        raise BadInput("no run has ended yet, so there is no table to write; finish one first")
    return ended
