"""Clients that took no part in the training: what they reach after they joined."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import Cell, Column, html_table, percent
from fedloom.launch.tables import OverSeeds
from fedloom.record import At
from fedloom.report.clients import accuracy_cell, client_cell
from fedloom.report.curves import model_name
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.numbers import newcomer_means
from fedloom.report.runs import StoredRun
from fedloom.report.summary import method_cell

MOST_CLIENTS = 500
OVER_SEEDS = "mean ± deviation over seeds"


def newcomers_section(group: RunGroup, name: str) -> Html | None:
    """Methods side by side, then every newcomer under every method; None where none joined."""
    rows = [row for row in group.rows if any(run.newcomer_results for run in row.shown)]
    if not rows:
        return None
    return tag(
        "section",
        tag("h3", "Newcomers"),
        tag("p", "Clients that took no part in the training and joined after it.", class_="quiet"),
        _methods(rows, name),
        _clients(group, rows, name),
        id=f"{name}-newcomers",
    )


def _methods(rows: Sequence[MethodRuns], name: str) -> Html:
    at, of = _joined_at(rows[0].shown), rows[0].runs[0].about
    columns = [
        Column("Method", numeric=False),
        Column(
            f"Newcomers{of.unit}", f"{of.name}, model {model_name(at)}; {OVER_SEEDS}", of.better
        ),
        Column(f"As received{of.unit}", "with what the server sends, before training", of.better),
        Column(f"Worst newcomer{of.unit}", "the worst of any", of.better),
        Column(f"Clients that trained{of.unit}", "the result of the run"),
    ]
    cells = [
        [
            method_cell(row),
            percent(OverSeeds.of(_value(run) for run in row.shown), scale=of.factor),
            percent(
                OverSeeds.of(run.mean(run.newcomers_as_received) for run in row.shown),
                scale=of.factor,
            ),
            percent(OverSeeds.of(_worst(run) for run in row.shown), scale=of.factor),
            percent(OverSeeds.of(run.accuracy for run in row.shown), scale=of.factor),
        ]
        for row in rows
    ]
    return html_table(f"{name}-newcomers-methods", "Newcomers, over seeds", columns, cells)


def _clients(group: RunGroup, rows: Sequence[MethodRuns], name: str) -> Html:
    of = group.metric
    means = {row.label: newcomer_means(row) for row in rows}
    results = {key: result for by in means.values() for key, result in by.items()}
    columns = [
        Column("Newcomer"),
        Column("Test rows"),
        *(Column(f"{label}{of.unit}", "mean over all seeds") for label in means),
    ]
    cells = [
        [
            client_cell(group, key),
            Cell(str(results[key].rows), results[key].rows),
            *(accuracy_cell(by, key, of) for by in means.values()),
        ]
        for key in list(results)[:MOST_CLIENTS]
    ]
    some = f", the first {MOST_CLIENTS} of {len(results)}" if len(results) > MOST_CLIENTS else ""
    return html_table(f"{name}-newcomers-clients", f"Newcomers{some}", columns, cells)


def _joined_at(runs: Sequence[StoredRun]) -> At:
    return next(run.summary.newcomers.at for run in runs if run.summary and run.summary.newcomers)


def _value(run: StoredRun) -> float | None:
    joined = None if run.summary is None else run.summary.newcomers
    return None if joined is None else joined.value


def _worst(run: StoredRun) -> float | None:
    values = (result.accuracy for result in run.newcomer_results.values())
    return min(values, key=run.about.gain, default=None)
