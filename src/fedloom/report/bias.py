"""Representation bias: Fisher ratio, drift and overlap of each layer, with their references."""

from __future__ import annotations

from typing import Any

from fedloom.report.figures import Drawings, plain_table
from fedloom.report.findings import count_range, mean_of_known, newest
from fedloom.report.html import Html, tag
from fedloom.runs.scores import Record

FISHER = {"mean": "mean", "largest": "largest", "within_classes": "within classes"}
HEAD = {
    "fisher": [
        *(h for said in FISHER.values() for h in (f"Fisher {said} before", "after", "noise")),
        *("own rows", "others' rows"),
    ],
    "drift": [
        *("drift seen", "drift unseen", "one less CKA", "if unrelated"),
        *("seen rows", "unseen rows"),
    ],
    "overlap": ["told apart before", "after", "noise ±", "ratio of spreads", "rows of each set"],
}


def representation_bias(name: str, lines: list[Record], drawings: Drawings) -> Html:
    """Fisher ratio, drift and overlap of each layer in one table."""
    del drawings
    kinds = [kind for kind in HEAD if any(f["name"] == kind for f in lines)]
    now = {kind: newest([f for f in lines if f["name"] == kind]) for kind in kinds}
    by = {(f["layer"], kind): f for kind, found in now.items() for f in found}
    layers = list(dict.fromkeys(layer for layer, _ in by))
    rows = [
        [layer, *(v for kind in kinds for v in _measures(kind, by.get((layer, kind))))]
        for layer in layers
    ]
    columns = ["layer", *(title for kind in kinds for title in HEAD[kind])]
    rounds = {kind: found[0]["round"] for kind, found in now.items()}
    at = ", ".join(f"{kind} of round {t}" for kind, t in rounds.items())
    caption = f"Representation bias, mean over clients: {at}"
    note = (
        "Fisher: how far a client's features lie from the others', in their own spread, in the mean"
        " and the largest dimension and within classes; noise: what rows of one law would give."
        " Drift: cosine distance that local training moves a row of a seen or an unseen class. Told"
        " apart: area under the curve of seen against unseen classes, 0.5 if they are not; a ratio"
        " of spreads below 1: they collapse. Rows: lowest and highest client."
    )
    table = plain_table(f"{name}-table", caption, columns, rows)
    return tag("div", table, tag("p", note, class_="quiet"), class_="wide")


def _measures(kind: str, line: Record | None) -> list[Any]:
    if line is None:
        return [None] * len(HEAD[kind])
    found, mean = line["result"], line["result"]["mean"]
    if kind == "fisher":
        numbers = [
            v
            for k in FISHER
            for v in (mean["before"][k], mean["after"][k], mean["after"][f"null_{k}"])
        ]
        return [*numbers, *(count_range([n[i] for n in found["n"]]) for i in range(2))]
    if kind == "drift":
        moved = [mean["seen"]["cosine"], mean["unseen"]["cosine"]]
        whole = [mean["all"]["cka"], mean["all"]["null_cka"]]
        return [*moved, *whole, *(count_range(found[part]["n"]) for part in ("seen", "unseen"))]
    noise = mean_of_known(found["auc_noise"])
    told = [mean["before"]["auc"], mean["after"]["auc"], noise, mean["rho"]]
    return [*told, count_range(found["n"])]
