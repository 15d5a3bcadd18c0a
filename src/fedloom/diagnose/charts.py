"""What the charts of several diagnostics share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fedloom.diagnose.diagnostic import Reading
from fedloom.diagnose.per_client import SIDES, Column, Side
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag

Result = TypeVar("Result")


def newest(readings: list[Reading[Result]]) -> list[Reading[Result]]:
    """The readings of the last round that has any."""
    last = max(reading.round for reading in readings)
    return [reading for reading in readings if reading.round == last]


def bars(side: Side, means: Iterable[float], clients: Iterable[Column]) -> dict[str, Any]:
    """A series of bars: means over clients, with the lowest and the highest client of each.

    >>> bars("after", [0.5], [(0.25, math.nan, 0.75)])
    {'key': 'after', 'values': [0.5], 'low': [0.25], 'high': [0.75]}
    """
    defined = [[value for value in column if not math.isnan(value)] for column in clients]
    return {
        "key": side,
        "values": [rounded(value) for value in means],
        "low": [rounded(min(values, default=None)) for values in defined],
        "high": [rounded(max(values, default=None)) for values in defined],
    }


def over_rounds(
    name: str,
    title: str,
    ylabel: str,
    readings: list[Reading[Result]],
    drawings: Drawings,
    value: Callable[[Reading[Result], Side], float | None],
) -> Html | None:
    """A line for every layer and side, where more than one round was measured."""
    if len({reading.round for reading in readings}) < 2:
        return None
    lines: dict[str, dict[int, float]] = {}
    for reading in readings:
        for side in SIDES:
            if (y := value(reading, side)) is not None:
                lines.setdefault(f"{reading.layer}, {side}", {})[reading.round] = y
    rounds = sorted({t for line in lines.values() for t in line})
    series = [
        {"key": key, "x": list(line), "y": [rounded(y) for y in line.values()]}
        for key, line in lines.items()
    ]
    table = [[t, *(line.get(t) for line in lines.values())] for t in rounds]
    return drawings.figure(
        f"{name}-rounds",
        title,
        {
            "kind": "lines",
            "xlabel": "round",
            "ylabel": ylabel,
            "keys": list(lines),
            "views": [{"name": "", "series": series}],
        },
        plain_table(f"{name}-rounds-table", title, ["round", *lines], table),
    )


def layer_table(
    title: str, head: Sequence[str], cells: Callable[[Result], list[Any]], note: str
) -> Callable[[str, list[Reading[Result]], Drawings], Html]:
    """In place of a chart: a row of means over clients for each layer, of the last round that has
    any. `cells` are those of a row, as many as the head has."""

    def table(name: str, readings: list[Reading[Result]], drawings: Drawings) -> Html:
        last = newest(readings)
        caption = f"{title}, mean over clients, round {last[0].round}"
        rows = [[reading.layer, *cells(reading.result)] for reading in last]
        return tag(
            "div",
            plain_table(f"{name}-table", caption, ["layer", *head], rows),
            tag("p", note, class_="quiet"),
            class_="wide",
        )

    return table


def each_layer(
    figure: Callable[[str, Reading[Result], Drawings], Html],
) -> Callable[[str, list[Reading[Result]], Drawings], Html]:
    """A figure of every layer, of the last round that has any."""

    def figures(name: str, readings: list[Reading[Result]], drawings: Drawings) -> Html:
        layers = {reading.layer: reading for reading in newest(readings)}.values()
        drawn = [figure(f"{name}-{i}", reading, drawings) for i, reading in enumerate(layers)]
        return tag("div", drawn, class_="flat")

    return figures


def count_range(counts: Sequence[int]) -> str:
    """How many rows clients have.

    >>> count_range([20, 20]), count_range([31, 20])
    ('20', '20 to 31')
    """
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low} to {high}"
