"""A study on a terminal: its progress, and its findings as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import nan
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedloom.diagnose.per_client import SIDES
from fedloom.diagnose.registry import diagnostics
from fedloom.diagnose.rows import Row, short
from fedloom.record import Finding


class Steps:
    """A bar with what a study is at, drawn when it begins."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=quiet)
        self._task = self._bar.add_task("", total=None)

    def begin(self, what: str, done: int, total: int) -> None:
        """The next step, as `study` announces it."""
        self._bar.start()
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            (task,) = self._bar.tasks
            self._bar.update(self._task, description="done", completed=task.total)
        self._bar.stop()


def findings_table(findings: Sequence[Finding]) -> Table:
    """Means over clients before and after local training, and what to hold them against."""
    rounds = sorted({finding.round for finding in findings})
    table = Table(title=f"Diagnostics after round {', '.join(map(str, rounds))}")
    table.add_column("number", overflow="fold")
    table.add_column("layer", overflow="fold")
    table.add_column("rows of")
    for head in SIDES:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("reference", overflow="fold")
    for row in _rows(findings):
        numbers = [short(row.numbers.get(side, nan)) for side in SIDES]
        table.add_row(
            Text(row.label), Text(row.layer or ""), Text(row.data), *numbers, Text(row.reference)
        )
    return table


def _rows(findings: Iterable[Finding]) -> list[Row]:
    """Before and after of one number side by side, also where they are two findings."""
    merged: dict[tuple[str, str | None, str], Row] = {}
    for finding in findings:
        for row in _rows_of(finding):
            key = row.label, row.layer, row.data
            first = merged.setdefault(key, row)
            merged[key] = replace(first, numbers={**first.numbers, **row.numbers})
    return list(merged.values())


def _rows_of(finding: Finding) -> list[Row]:
    diagnostic = diagnostics()[finding.name]
    if finding.skipped:
        title = diagnostic.title
        return [Row(title, finding.layer, finding.data, reference=finding.skipped)]
    return diagnostic.rows(diagnostic.read(finding))
