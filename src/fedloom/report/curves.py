"""The result's metric against rounds, seconds and megabytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from fedloom.core.metrics import Metric
from fedloom.core.score import GLOBAL, PERSONAL
from fedloom.drawing.figures import (
    MOST_POINTS,
    MOST_TABLE_ROWS,
    Drawings,
    plain_table,
    rounded,
    thinned,
)
from fedloom.drawing.html import Html, tag
from fedloom.record import At
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.runs import Curve

Axis = Literal["rounds", "seconds", "megabytes"]
MOMENTS = {
    "received": "as received",
    "trained": "after local training",
    "adapted": "after fine-tuning",
    "final": "adapted at the end",
}
AXES: dict[Axis, tuple[str, str]] = {
    "rounds": ("round", "rounds"),
    "seconds": ("seconds", "seconds"),
    "megabytes": ("MB sent and received by the average client", "bytes"),
}
_DIGITS = {"rounds": 0, "seconds": 3, "megabytes": 4}


@dataclass(frozen=True)
class MeanCurve:
    """A method's curve: means over its seeds, at the rounds all of them scored."""

    rounds: list[int]
    accuracy: list[float]
    seconds: list[float]
    megabytes: list[float]
    low: list[float] = field(default_factory=list)
    """Lowest seed's accuracy; empty of a single seed."""
    high: list[float] = field(default_factory=list)

    def along(self, axis: Axis) -> list[float]:
        """Where the points are on an axis."""
        values: dict[Axis, list[float]] = {
            "rounds": [float(t) for t in self.rounds],
            "seconds": self.seconds,
            "megabytes": self.megabytes,
        }
        return values[axis]


def curves_section(group: RunGroup, name: str, drawings: Drawings) -> Html:
    """Three charts with one legend; the script lets curves and models be chosen."""
    models = _models(group)
    curves = {at: {row.label: mean_curve(row, at) for row in group.rows} for at in models}
    labels, of = [row.label for row in group.rows], group.metric
    head = of.head.removesuffix(of.unit)
    figures = [
        drawings.figure(
            f"{name}-curve-{axis}",
            f"{head} against {against}",
            {
                "kind": "lines",
                "group": name,
                "xlabel": label,
                "ylabel": of.title,
                "keys": labels,
                "views": [
                    {
                        "name": model_name(at),
                        "series": [_series(k, by[k], axis, of) for k in labels],
                    }
                    for at, by in curves.items()
                ],
            },
            _table(f"{name}-{axis}", axis, curves[models[0]], of) if models else None,
        )
        for axis, (label, against) in AXES.items()
    ]
    seeds = max(len(row.shown) for row in group.rows)
    note = "Lines are means over seeds, bands go from the lowest to the highest seed."
    return tag(
        "section",
        tag("h3", "Curves"),
        tag("p", note, class_="quiet") if seeds > 1 else None,
        tag("div", class_="controls", data_controls=name),
        tag("div", figures, class_="figures"),
        id=f"{name}-curves",
    )


def mean_curve(row: MethodRuns, at: At) -> MeanCurve:
    """Of one method and one model."""
    curves = [curve for run in row.shown if (curve := run.curve(at)).rounds]
    places = [{t: i for i, t in enumerate(curve.rounds)} for curve in curves]
    common = sorted(set.intersection(*map(set, places))) if places else []
    rounds = [common[i] for i in thinned(len(common), MOST_POINTS)]
    picked = [
        _picked(curve, [place[t] for t in rounds])
        for curve, place in zip(curves, places, strict=True)
    ]
    accuracy = list(zip(*(curve.accuracy for curve in picked), strict=True))
    several = len(curves) > 1
    return MeanCurve(
        rounds,
        accuracy=list(map(fmean, accuracy)),
        seconds=list(map(fmean, zip(*(curve.seconds for curve in picked), strict=True))),
        megabytes=list(map(fmean, zip(*(curve.megabytes for curve in picked), strict=True))),
        low=list(map(min, accuracy)) if several else [],
        high=list(map(max, accuracy)) if several else [],
    )


def _picked(curve: Curve, places: list[int]) -> Curve:
    return Curve(
        [curve.rounds[i] for i in places],
        [curve.accuracy[i] for i in places],
        [curve.seconds[i] for i in places],
        [curve.megabytes[i] for i in places],
    )


def _models(group: RunGroup) -> list[At]:
    """What was scored in more than one step, the curve that leads to the result first."""
    first = group.first.curve_at
    steps: dict[At, int] = {} if first is None else {first: 2}
    for run in group.runs:
        for at, count in run.scored.items():
            steps[at] = max(steps.get(at, 0), count)
    return [at for at, count in steps.items() if count > 1]


def model_name(at: At) -> str:
    """Which model a score is of, in words.

    >>> model_name(At("final", "test")), model_name(At("received", "val"))
    ('adapted at the end', 'as received, val rows')
    >>> model_name(At("received", "test", "generic_head"))
    'as received, generic head alone'
    """
    words = [MOMENTS[at.moment]]
    if at.group == "shared tests":
        words = ["global model on shared test sets"]
    elif at.model == GLOBAL:
        words.append("global model")
    elif at.model != PERSONAL:
        words.append(f"{at.model.replace('_', ' ')} alone")
    if at.group == "newcomers":
        words.append("newcomers")
    if at.group == "clients on shared tests":
        words.append("on shared test sets")
    if at.split != "test":
        words.append(f"{at.split} rows")
    return ", ".join(words)


def _series(key: str, curve: MeanCurve, axis: Axis, of: Metric) -> dict[str, Any]:
    ends = {"low": curve.low, "high": curve.high} if curve.low else {}
    return {
        "key": key,
        "x": [rounded(v, _DIGITS[axis]) for v in curve.along(axis)],
        "y": [rounded(of.factor * v, 3) for v in curve.accuracy],
        "round": curve.rounds,
        **{name: [rounded(of.factor * v, 3) for v in values] for name, values in ends.items()},
    }


def _table(name: str, axis: Axis, curves: dict[str, MeanCurve], of: Metric) -> Html:
    """Rounds down, methods across; on the axis of rounds the metric, else that axis."""
    rounds = sorted({t for curve in curves.values() for t in curve.rounds})
    shown = [rounds[i] for i in thinned(len(rounds), MOST_TABLE_ROWS)]
    columns = [
        dict(
            zip(
                curve.rounds,
                [of.factor * value for value in curve.accuracy]
                if axis == "rounds"
                else curve.along(axis),
                strict=True,
            )
        )
        for curve in curves.values()
    ]
    rows = [[t, *(rounded(column.get(t), 4) for column in columns)] for t in shown]
    metric_unit = of.head.removesuffix(of.unit) + (" in percent" if of.share else "")
    unit = {"rounds": metric_unit, "seconds": "Seconds", "megabytes": "Megabytes"}[axis]
    some = f"; {len(shown)} of {len(rounds)} scored rounds" if len(shown) < len(rounds) else ""
    return plain_table(f"{name}-table", f"{unit} after each round{some}", ["round", *curves], rows)
