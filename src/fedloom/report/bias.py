"""Representation bias: Fisher ratio, drift and overlap of each layer, with their references."""

from __future__ import annotations

from typing import Any

from fedloom.drawing.figures import Drawings, plain_table
from fedloom.drawing.html import Html, tag
from fedloom.report.findings import count_range, mean_of_known, newest
from fedloom.runs.scores import Record

FISHER = {"mean": "mean", "largest": "largest", "within_classes": "within classes"}
HEADS = {
    "fisher": [
        *(h for said in FISHER.values() for h in (f"{said} before", "after", "noise")),
        *("own rows", "others' rows"),
    ],
    "drift": [
        *("seen classes", "unseen classes", "one less CKA", "if unrelated"),
        *("seen rows", "unseen rows"),
    ],
    "overlap": ["told apart before", "after", "noise ±", "ratio of spreads", "rows of each set"],
}
TITLES = {"fisher": "Fisher ratio", "drift": "Drift", "overlap": "Overlap of seen and unseen"}
NOTES = {
    "fisher": "How far a client's features lie from the others', in their own spread: in the mean"
    " and in the largest dimension, and within classes. Noise: what rows of one law would give.",
    "drift": "Cosine distance that local training moves a row of a seen or an unseen class; over"
    " all rows one less CKA, beside that of unrelated features.",
    "overlap": "Area under the curve of seen against unseen classes, 0.5 if nothing tells them"
    " apart; a ratio of spreads below 1: they collapse.",
}


def representation_bias(name: str, lines: list[Record], drawings: Drawings) -> Html:
    """A table of layers for each measure, of the last round that has it."""
    del drawings
    parts: list[Html] = []
    for kind, head in HEADS.items():
        if here := [f for f in lines if f["name"] == kind]:
            now = newest(here)
            caption = f"{TITLES[kind]}, mean over clients, round {now[0]['round']}"
            rows = [[f["layer"], *MEASURES[kind](f["result"])] for f in now]
            parts.append(plain_table(f"{name}-{kind}-table", caption, ["layer", *head], rows))
            parts.append(tag("p", NOTES[kind], class_="quiet"))
    return tag("div", parts, class_="wide")


def _fisher(found: Record) -> list[Any]:
    before, after = found["mean"]["before"], found["mean"]["after"]
    numbers = [v for k in FISHER for v in (before[k], after[k], after[f"null_{k}"])]
    return [*numbers, *(count_range([n[i] for n in found["n"]]) for i in range(2))]


def _drift(found: Record) -> list[Any]:
    mean, parts = found["mean"], ("seen", "unseen")
    whole = [mean["all"]["cka"], mean["all"]["null_cka"]]
    counts = [count_range(found[part]["n"]) for part in parts]
    return [*(mean[part]["cosine"] for part in parts), *whole, *counts]


def _overlap(found: Record) -> list[Any]:
    mean, noise = found["mean"], mean_of_known(found["auc_noise"])
    told = [mean["before"]["auc"], mean["after"]["auc"], noise, mean["rho"]]
    return [*told, count_range(found["n"])]


MEASURES = {"fisher": _fisher, "drift": _drift, "overlap": _overlap}
