"""Description length of labels: a chart for each data set, in units that compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.report.findings import SIDES, bars, count_range, mean_of_known, newest
from fedloom.runs.scores import Record

UNEQUAL = "local-test"
"""Where clients code unequally many labels, so that only bits per label have a mean."""
ROWS = {"bal": "balanced rows", "local-test": "own test rows", "pooled": "rows of all clients"}
HEAD = [
    *("layer", "labels", "estimator", "probe", "bits before", "bits after"),
    *("bits per label before", "after", "labels alone, per label", "uniform code, per label"),
    *("of uniform code before", "after", "change %"),
]
NOTES = {
    "bal": "Uniform code: all classes taken for equally likely, no features.",
    "local-test": "Labels alone: a receiver who knows how often a client has each class, and no"
    " features; mean over clients.",
    "pooled": "Uniform code: all classes taken for equally likely, no features. The probe may read"
    " from the features which client a row is from, and so which labels to expect.",
}


def description_length(name: str, lines: list[Record], drawings: Drawings) -> Html:
    """A chart for each data set."""
    now = newest(lines)
    figures = [
        _figure(f"{name}-{data}", data, [f for f in now if f["data"] == data], drawings)
        for data in dict.fromkeys(line["data"] for line in now)
    ]
    return tag("div", figures, class_="flat")


def _figure(name: str, data: str, lines: list[Record], drawings: Drawings) -> Html:
    """In bits where all code equally many labels; on clients' own rows in bits per label."""
    unequal = data == UNEQUAL
    by = "per_label" if unequal else "bits"
    shown = [{**line, "result": _with_bits_per_label(line["result"])} for line in lines]
    reference = "labels alone" if unequal else "uniform code"
    value = mean_of_known(
        v
        for f in (line["result"] for line in lines)
        for v in (_per_label(f["prior_bits"], f["n"]) if unequal else f["uniform_bits"])
    )
    whose = "One code over the rows of all clients" if data == "pooled" else "Mean over clients"
    whiskers = "" if data == "pooled" else " Whiskers: lowest and highest client."
    return drawings.figure(
        name,
        f"Description length, {ROWS[data]}, round {lines[0]['round']}",
        {
            "kind": "bars",
            "ylabel": "bits per label" if unequal else "bits",
            "groups": [line["layer"] for line in lines],
            "series": bars(shown, by),
            "references": [{"name": reference, "value": rounded(value)}]
            if value is not None
            else [],
        },
        plain_table(f"{name}-table", whose, HEAD, [_row(line) for line in shown]),
        f"Lower is better: bits to tell the labels from the features.{whiskers} {NOTES[data]}",
    )


def _row(line: Record) -> list[Any]:
    found, used = line["result"], line["settings"]
    whole = [None if line["data"] == UNEQUAL else found["mean"][side]["bits"] for side in SIDES]
    return [
        line["layer"],
        count_range(found["n"]),
        used["estimator"],
        used["probe"],
        *whole,
        *(found["mean"][side]["per_label"] for side in SIDES),
        *(mean_of_known(_per_label(found[k], found["n"])) for k in ("prior_bits", "uniform_bits")),
        *(found["mean"][side]["ratio"] for side in SIDES),
        found["mean_change_percent"],
    ]


def _with_bits_per_label(found: Record) -> Record:
    sides = {
        side: {**found[side], "per_label": _per_label(found[side]["bits"], found["n"])}
        for side in SIDES
    }
    means = {
        side: {**found["mean"][side], "per_label": mean_of_known(sides[side]["per_label"])}
        for side in SIDES
    }
    return {**found, **sides, "mean": {**found["mean"], **means}}


def _per_label(bits: Sequence[float | None], n: Sequence[int]) -> list[float | None]:
    return [None if b is None else b / count for b, count in zip(bits, n, strict=True)]
