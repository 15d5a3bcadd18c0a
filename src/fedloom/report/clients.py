"""Client by client: who gains by taking part, and who loses."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import NONE, Cell, Column, html_table, number, points
from fedloom.report.groups import Group, Row
from fedloom.report.numbers import (
    ClientKey,
    GainLine,
    best_row,
    client_means,
    gains,
    on_common_seeds,
)

MOST_ROWS = 2500
"""Rows of all methods' client tables together."""
WIDTH = NormalDist().inv_cdf(0.975)
"""Standard errors on both sides that hold 95 %."""
GAIN_HINT = "points on the seeds both have, ± half of its 95 % interval"
VERDICT_HINT = (
    "outside the 95 % interval around zero? By chance alone about 2.5 % of clients are on each side"
)
REFERENCES = {"local": "Local", "fedavg": "FedAvg"}


def clients_section(group: Group, name: str, drawings: Drawings) -> Html:
    """Gains of every client over Local and over FedAvg, as a chart and as tables that sort."""
    references = {said: row for m, said in REFERENCES.items() if (row := group.named(m))}
    found = {
        row.label: {
            said: gains(row, other) for said, other in references.items() if other is not row
        }
        for row in group.rows
    }
    kept = max(60, MOST_ROWS // len(group.rows))
    tables = [
        tag(
            "div",
            _client_table(group, row, f"{name}-client-{i}", found[row.label], references, kept),
            class_="choice",
            data_choice=row.label,
        )
        for i, row in enumerate(group.rows)
    ]
    return tag(
        "section",
        tag("h3", "Clients"),
        [_gain_figure(name, said, found, drawings) for said in references],
        None
        if references
        else tag(
            "p",
            "No run of local or fedavg is among these, so there is no gain to show.",
            class_="quiet",
        ),
        tag("div", class_="controls", data_choose=name),
        tag("div", tables, class_="choices", data_choices=name, data_first=_first(group)),
        id=f"{name}-clients",
    )


def _first(group: Group) -> str:
    """The table to begin with: of the best method that is not a reference."""
    others = [row for row in group.rows if row.method not in REFERENCES]
    best = best_row(Group(others)) if others else None
    return (best or (others or group.rows)[0]).label


def _gain_figure(
    name: str, said: str, found: Mapping[str, Mapping[str, GainLine | None]], drawings: Drawings
) -> Html | None:
    lines = {label: line for label, over in found.items() if (line := over.get(said)) is not None}
    if not lines:
        return None
    strips = [
        {
            "key": label,
            "values": [rounded(100 * g, 2) for g in line.found.gains],
            "names": [cid for _, cid in line.clients],
            "clear": [int(_verdict(line, i) != 0) for i in range(len(line.clients))],
        }
        for label, line in lines.items()
    ]
    head = [
        "method",
        "mean",
        "median",
        "worst",
        "worst client",
        "gain %",
        "lose %",
        "above 0 %",
    ]
    rows = [
        [
            label,
            points(g.mean),
            points(g.median),
            points(g.worst),
            line.clients[g.worst_client][1],
            *(f"{100 * share:.0f}" for share in (g.helped, g.harmed, g.positive)),
        ]
        for label, line in lines.items()
        for g in [line.found]
    ]
    caption = f"Gain over {said} in points, over clients"
    note = (
        f"Every dot is a client, below zero it loses by taking part; filled: outside its 95 %"
        f" interval around zero, where chance alone puts about 2.5 % of clients on each side."
        f" Accuracy less that of {said} with the same seeds."
    )
    return drawings.figure(
        f"{name}-gain-{said.lower()}",
        f"Gain of each client over {said}",
        {"kind": "strip", "ylabel": "points", "strips": strips},
        plain_table(f"{name}-gain-{said.lower()}-table", caption, head, rows),
        note,
    )


def _verdict(line: GainLine, i: int) -> int:
    """1 gains, -1 loses, 0 within its noise."""
    g, error = line.found.gains[i], line.found.errors[i]
    return 0 if abs(g) <= WIDTH * error else (1 if g > 0 else -1)


def _client_table(
    group: Group,
    row: Row,
    name: str,
    over: Mapping[str, GainLine | None],
    references: Mapping[str, Row],
    most: int,
) -> Html:
    means = client_means(row)
    others = {
        said: client_means(on_common_seeds(row, other)[1])
        for said, other in references.items()
        if other is not row
    }
    named = {said: references[said].label for said in others}
    positions = {
        said: {key: i for i, key in enumerate(line.clients)} for said, line in over.items() if line
    }
    columns = [
        Column("Client"),
        Column("Training rows"),
        Column("Test rows"),
        Column("Accuracy %", "mean over all seeds"),
        *(
            Column(f"{label} %", "accuracy of the same client, mean over the seeds both have")
            for label in named.values()
        ),
        *(Column(f"Gain over {label}", GAIN_HINT) for label in named.values()),
        *(Column(f"Against {label}", VERDICT_HINT, numeric=False) for label in named.values()),
    ]
    first = next(iter(over.values()), None)
    keys = _kept(means, first, most)
    sizes = {run.partition: run.sizes for run in row.runs}
    names = _names(group, means)
    rows = [
        [
            names[key],
            _training_rows(group, sizes, key),
            Cell(str(means[key][1]), means[key][1]),
            number(means[key][0], 1, 100),
            *(
                number(scores[key][0] if key in scores else None, 1, 100)
                for scores in others.values()
            ),
            *(_gain_cell(over[said], positions.get(said, {}).get(key)) for said in others),
            *(_verdict_cell(over[said], positions.get(said, {}).get(key)) for said in others),
        ]
        for key in keys
    ]
    least = "gain" if first else "reach"
    some = f", the {len(keys)} of {len(means)} that {least} least" if len(keys) < len(means) else ""
    return html_table(name, f"{row.label}: clients{some}", columns, rows)


def _kept(
    means: Mapping[ClientKey, tuple[float, int]], line: GainLine | None, most: int
) -> list[ClientKey]:
    """All clients in their order, or of too many those that gain, or reach, least."""
    if len(means) <= most:
        return list(means)
    gain_of = {} if line is None else dict(zip(line.clients, line.found.gains, strict=True))
    return sorted(means, key=lambda key: (gain_of.get(key, 0.0), means[key][0]))[:most]


def _names(group: Group, means: Mapping[ClientKey, Any]) -> dict[ClientKey, Cell]:
    """Client ids; with partitions of their own, seeds tell clients of the same id apart."""
    shared = group.first.shared_tests if group.first.protocol.on == "shared" else []
    seeds = {run.partition: run.config.seed for run in reversed(group.runs)}
    found: dict[ClientKey, Cell] = {}
    for part, cid in means:
        text = shared[int(cid)] if shared else cid
        order = int(cid) if group.same_partition else 1e6 * seeds[part] + int(cid)
        found[part, cid] = Cell(
            text if group.same_partition else f"seed {seeds[part]}: {text}", order
        )
    return found


def _training_rows(
    group: Group, sizes: Mapping[str, list[tuple[int, int, int]]], key: ClientKey
) -> Cell:
    part, cid = key
    if group.first.protocol.on == "shared" or not sum(sizes[part][int(cid)]):
        return Cell(NONE)
    rows = sizes[part][int(cid)][0]
    return Cell(str(rows), rows)


def _gain_cell(line: GainLine | None, i: int | None) -> Cell:
    if line is None or i is None:
        return Cell(NONE)
    g, error = line.found.gains[i], line.found.errors[i]
    tone = "loses" if g < 0 else "gains" if g > 0 else ""
    return Cell(f"{points(g)} ± {100 * WIDTH * error:.1f}", g, tone)


def _verdict_cell(line: GainLine | None, i: int | None) -> Cell:
    if line is None or i is None:
        return Cell(NONE)
    verdict, g = _verdict(line, i), line.found.gains[i]
    if verdict:
        return Cell("▲ gains" if g > 0 else "▼ loses", verdict, "gains" if g > 0 else "loses")
    return Cell("equal" if g == 0 else "within noise", 0)
