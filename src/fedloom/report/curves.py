"""Accuracy against rounds, seconds and megabytes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from fedloom.drawing.figures import (
    MOST_POINTS,
    MOST_TABLE_ROWS,
    Drawings,
    plain_table,
    rounded,
    thinned,
)
from fedloom.drawing.html import Html, tag
from fedloom.report.groups import Group, Row
from fedloom.report.runs import Curve

MOMENTS = {
    "received": "as received",
    "trained": "after local training",
    "adapted": "after fine-tuning",
    "final": "adapted at the end",
    "shared": "global model on shared test sets",
}
AXES = {
    "rounds": ("round", "Accuracy against rounds"),
    "seconds": ("seconds", "Accuracy against seconds"),
    "megabytes": ("MB sent and received by the average client", "Accuracy against bytes"),
}
_DIGITS = {"rounds": 0, "seconds": 3, "megabytes": 4}


def curves_section(group: Group, name: str, drawings: Drawings) -> Html:
    """Three charts with one legend; the script lets curves and moments be chosen."""
    views = _views(group)
    found = {at: {row.label: mean_curve(row, at) for row in group.rows} for at in views}
    labels = [row.label for row in group.rows]
    figures = [
        drawings.figure(
            f"{name}-curve-{axis}",
            title,
            {
                "kind": "lines",
                "group": name,
                "xlabel": label,
                "ylabel": "accuracy %",
                "keys": labels,
                "views": [
                    {"name": said, "series": [_series(k, found[at][k], axis) for k in labels]}
                    for at, said in views.items()
                ],
            },
            _table(f"{name}-{axis}", axis, found[next(iter(views))]) if views else None,
        )
        for axis, (label, title) in AXES.items()
    ]
    seeds = max(len(row.shown) for row in group.rows)
    note = (
        "Lines are means over seeds, bands go from the lowest to the highest seed."
        if seeds > 1
        else ""
    )
    return tag(
        "section",
        tag("h3", "Curves"),
        tag("p", note, class_="quiet") if note else None,
        tag("div", class_="controls", data_controls=name),
        tag("div", figures, class_="figures"),
        id=f"{name}-curves",
    )


def mean_curve(row: Row, at: str) -> dict[str, list[Any]]:
    """Means over the seeds, at the rounds all of them scored, and the band between seeds."""
    curves = [curve for run in row.shown if (curve := run.curve(at)).rounds]
    places = [{t: i for i, t in enumerate(curve.rounds)} for curve in curves]
    common = sorted(set.intersection(*map(set, places))) if places else []
    rounds = [common[i] for i in thinned(len(common), MOST_POINTS)]
    found: dict[str, list[Any]] = {"rounds": rounds}
    for key in ("accuracy", "seconds", "megabytes"):
        values = [
            _at(curve, key, place, rounds) for curve, place in zip(curves, places, strict=True)
        ]
        found[key] = [fmean(column) for column in zip(*values, strict=True)]
        if key == "accuracy" and len(curves) > 1:
            found["low"] = [min(column) for column in zip(*values, strict=True)]
            found["high"] = [max(column) for column in zip(*values, strict=True)]
    return found


def _at(curve: Curve, key: str, place: dict[int, int], rounds: list[int]) -> list[float]:
    values: list[float] = getattr(curve, key)
    return [values[place[t]] for t in rounds]


def _views(group: Group) -> dict[str, str]:
    """What was scored in more than one round, the curve the result is of first."""
    main = group.first.curve_at
    counts: dict[str, int] = {main: 2}
    for run in group.runs:
        for at in run.moments:
            scored = sum(at in r["scores"] for r in run.records)
            counts[at] = max(counts.get(at, 0), scored)
    return {at: moment_name(at) for at, count in counts.items() if count > 1}


def moment_name(at: str) -> str:
    """Which model a "moment/split" is of.

    >>> moment_name("final/test"), moment_name("received/val")
    ('adapted at the end', 'as received, val rows')
    """
    *moment, split = at.split("/")
    said = " ".join(MOMENTS.get(m, m) for m in moment)
    return said if split == "test" else f"{said}, {split} rows"


def _series(key: str, curve: dict[str, list[Any]], axis: str) -> dict[str, Any]:
    percent: dict[str, Any] = {
        k: [rounded(100 * v, 3) for v in curve[k]] for k in ("low", "high") if k in curve
    }
    return {
        "key": key,
        "x": [rounded(v, _DIGITS[axis]) for v in curve[axis]],
        "y": [rounded(100 * v, 3) for v in curve["accuracy"]],
        "round": curve["rounds"],
        **percent,
    }


def _table(name: str, axis: str, curves: dict[str, dict[str, list[Any]]]) -> Html:
    """Rounds down, methods across; on the axis of rounds the accuracy, else that axis."""
    key = "accuracy" if axis == "rounds" else axis
    rounds = sorted({t for curve in curves.values() for t in curve["rounds"]})
    kept = [rounds[i] for i in thinned(len(rounds), MOST_TABLE_ROWS)]
    scale = 100.0 if key == "accuracy" else 1.0
    values = {
        label: dict(zip(curve["rounds"], curve[key], strict=True))
        for label, curve in curves.items()
    }
    rows = [
        [
            t,
            *(
                rounded(scale * v, 4) if (v := column.get(t)) is not None else None
                for column in values.values()
            ),
        ]
        for t in kept
    ]
    unit = {"accuracy": "Accuracy in percent", "seconds": "Seconds", "megabytes": "Megabytes"}[key]
    some = f"; {len(kept)} of {len(rounds)} scored rounds" if len(kept) < len(rounds) else ""
    return plain_table(f"{name}-table", f"{unit} after each round{some}", ["round", *curves], rows)
