"""The fair table as a page of the report: tables that sort, FedAvg's curves, mean ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from table_page import (
    SHOWN,
    Standing,
    best_first,
    chosen_settings,
    mean_curve,
    protocol_ranks,
    score,
)
from table_results import FRACTIONS, DataSet, Measured, Results, Rows

from fedloom.drawing.figures import Drawings, plain_table
from fedloom.drawing.html import Html, join, tag
from fedloom.drawing.tables import NONE, Cell, Column, html_table, number
from fedloom.report.page import Body
from fedloom.report.page import page as framed

TITLE = "Every method, tuned with the same effort"


def page(rows: Rows, data_sets: Sequence[DataSet], results: Results) -> str:
    """One self-contained HTML page."""
    drawings = Drawings()
    standing = Standing.of(rows, results)
    sections = [
        tag(
            "section",
            tag("h2", "All data sets"),
            _overview(rows, data_sets, results, standing),
            _critical_difference(standing, drawings),
        ),
        tag("section", tag("h2", "FedAvg's curves"), _curves(data_sets, results, drawings)),
        tag("section", tag("h2", "The same runs under other protocols"), _protocols(rows, results)),
        *(
            tag(
                "section", tag("h2", d.short), tag("p", d.title), _details(d, rows, results[d.name])
            )
            for d in data_sets
        ),
    ]
    return framed(Body(TITLE, join(sections), drawings.specs))


def _overview(
    rows: Rows, data_sets: Sequence[DataSet], results: Results, standing: Standing | None
) -> Html:
    columns = [
        Column("Method", numeric=False),
        Column("Mean rank", "over data sets; 1 is the best", "low"),
        *(Column(f"{d.short} %", "mean over clients, then over seeds", "high") for d in data_sets),
    ]
    mean_rank = {} if standing is None else standing.mean_rank
    ordered = sorted(rows.methods, key=lambda name: mean_rank.get(name, len(rows.methods)))
    cells = [
        [
            Cell(name, name),
            number(mean_rank.get(name), 1),
            *(_accuracy(results[d.name].get(name)) for d in data_sets),
        ]
        for name in ordered
    ]
    return html_table("overview", "Accuracy and mean rank", columns, cells)


def _critical_difference(standing: Standing | None, drawings: Drawings) -> Html | None:
    """Mean ranks, and how far from the best one a row is told apart."""
    if standing is None:
        return None
    values = [round(standing.mean_rank[name], 2) for name in standing.names]
    limit = values[0] + standing.ranking.critical_difference
    spec = {
        "kind": "bars",
        "groups": list(standing.names),
        "series": [{"key": "mean rank", "values": values}],
        "references": [{"name": "told from the best above", "value": round(limit, 2)}],
        "xlabel": "method",
        "ylabel": "mean rank",
    }
    table = plain_table(
        "ranks-table",
        "Mean ranks",
        ["method", "mean rank"],
        list(zip(standing.names, values, strict=True)),
    )
    note = f"Nemenyi's critical difference at 5 %: {standing.ranking.critical_difference:.1f}."
    return drawings.figure("ranks", "Mean ranks over data sets", spec, table, note)


def _curves(data_sets: Sequence[DataSet], results: Results, drawings: Drawings) -> Html:
    parts = [100 * (i + 1) / FRACTIONS for i in range(FRACTIONS)]
    means = {d.short: mean_curve(results[d.name].get("FedAvg")) for d in data_sets}
    known = {key: [100 * v for v in values if v is not None] for key, values in means.items()}
    series = [
        {"key": key, "x": parts if values else [], "y": values} for key, values in known.items()
    ]
    spec = {
        "kind": "lines",
        "xlabel": "% of the rounds",
        "ylabel": "accuracy %",
        "keys": list(known),
        "views": [{"name": "as received", "series": series}],
    }
    lines = [[key, *values] for key, values in means.items()]
    head = ["data", *(f"{part:.0f} %" for part in parts)]
    return drawings.figure(
        "curves",
        "FedAvg with its chosen settings",
        spec,
        plain_table("curve", "FedAvg", head, lines),
    )


def _protocols(rows: Rows, results: Results) -> Html:
    cells = [
        [Cell(name, name), *(number(rank, 1) for rank in by_protocol)]
        for name, by_protocol in protocol_ranks(rows, results).items()
    ]
    head = [Column("Method", numeric=False), *(Column(p, SHOWN[p], "low") for p in SHOWN)]
    return html_table("protocols", "Mean rank under each protocol", head, cells)


def _data_section(data: DataSet, rows: Rows, by_row: Mapping[str, Measured]) -> Html:
    return tag("section", tag("h2", data.short), tag("p", data.title), _details(data, rows, by_row))


def _details(data: DataSet, rows: Rows, by_row: Mapping[str, Measured]) -> Html:
    columns = [
        Column("Method", numeric=False),
        Column("Accuracy %", "± half of the 95 % interval over seeds", "high"),
        Column("Worst tenth %", "of the clients", "high"),
        Column("MB", "sent by one client", "low"),
        Column("CPU s", "of one run", "low"),
        Column("Chosen settings", numeric=False),
    ]
    cells = [_detail(name, by_row.get(name)) for name in best_first(rows, by_row)]
    return html_table(f"{data.name}-methods", data.short, columns, cells)


def _detail(name: str, measured: Measured | None) -> list[Cell]:
    if measured is None:
        return [Cell(name, name), *[Cell(NONE)] * 5]
    return [
        Cell(name, name),
        _accuracy(measured),
        number(measured.mean("worst_decile"), 1, 100),
        number(measured.mean("megabytes"), 2),
        number(measured.mean("cpu_seconds"), 1),
        Cell(chosen_settings(measured)),
    ]


def _accuracy(measured: Measured | None) -> Cell:
    if measured is None or not measured.seeds:
        return Cell(NONE)
    half = measured.interval()
    mean = measured.mean("accuracy")
    broken = f", {len(measured.broken)} broke down" if measured.broken else ""
    spread = "" if half is None else f" ± {100 * half:.1f}"
    return Cell(f"{100 * mean:.1f}{spread}{broken}", score(measured))
