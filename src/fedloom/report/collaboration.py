"""Whose heads FedPAC combines with whose, over the rounds (its Figures 2 and 3)."""

from __future__ import annotations

from typing import Any

from fedloom.drawing.figures import Drawings, plain_table, thinned
from fedloom.drawing.html import Html, tag
from fedloom.record import RoundRecord
from fedloom.report.groups import MethodRuns, RunGroup

MOST_ROUNDS, MOST_CLIENTS = 24, 50


def collaboration_section(group: RunGroup, name: str, drawings: Drawings) -> Html | None:
    """A heat map with a slider for every method that noted its weights; None without any."""
    noted = [(row, _noted(row)) for row in group.rows]
    figures = [
        _figure(f"{name}-weights-{i}", row, records, drawings)
        for i, (row, records) in enumerate(noted)
        if records
    ]
    if not figures:
        return None
    return tag(
        "section",
        tag("h3", "Combination weights"),
        tag("div", figures, class_="figures"),
        id=f"{name}-weights",
    )


def _noted(row: MethodRuns) -> list[RoundRecord]:
    return [record for record in row.shown[0].records if "fedpac" in record.notes]


def _figure(name: str, row: MethodRuns, records: list[RoundRecord], drawings: Drawings) -> Html:
    run = row.shown[0]
    frames: list[dict[str, Any]] = []
    for record in [records[i] for i in thinned(len(records), MOST_ROUNDS)]:
        note = record.notes["fedpac"]
        names = [run.client_names[cid] for cid in note["clients"][:MOST_CLIENTS]]
        values = [[round(w, 3) for w in line[:MOST_CLIENTS]] for line in note["weights"]]
        frames.append(
            {
                "name": f"round {record.round}",
                "rows": names,
                "cols": names,
                "values": values[:MOST_CLIENTS],
            }
        )
    last = frames[-1]
    table = plain_table(
        f"{name}-table",
        f"Weights in {last['name']}",
        ["client", *last["cols"]],
        [[client, *line] for client, line in zip(last["rows"], last["values"], strict=True)],
    )
    many = len(records[-1].notes["fedpac"]["clients"])
    some = f" The first {MOST_CLIENTS} of {many} clients." if many > MOST_CLIENTS else ""
    spec = {
        "kind": "heat",
        "xlabel": "whose head",
        "ylabel": "client",
        "max": 1.0,
        "digits": 3,
        "frames": frames,
    }
    note_text = (
        f"Seed {run.config.seed}: how much of each head (across) a client's own (down) is made of."
        f"{some}"
    )
    return drawings.figure(name, f"{row.label}: weights", spec, table, note_text)
