"""Client by client: who gains by taking part, and who loses; what single heads reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from fedloom.core.metrics import Metric, words
from fedloom.drawing.figures import Drawings, plain_table, rounded
from fedloom.drawing.html import Html, tag
from fedloom.drawing.tables import NONE, Cell, Column, html_table, number, percent, points
from fedloom.launch.tables import OverSeeds
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.numbers import (
    ClientKey,
    GainLine,
    best_row,
    client_means,
    gains,
    head_means,
    on_common_seeds,
)
from fedloom.report.runs import ClientResult, StoredRun

MOST_ROWS = 2500
"""Rows of all methods' client tables together."""
WIDTH = NormalDist().inv_cdf(0.975)
"""Standard errors on both sides that hold 95 %."""
GAIN_HINT = "points on the seeds both have, ± half of its 95 % interval"
VERDICT_HINT = (
    "outside the 95 % interval around zero? By chance alone about 2.5 % of clients are on each side"
)
BOTH = "mean over the seeds both have"
HEAD_HINT = "this head alone, in the last of the rounds that count; mean over all seeds"
REFERENCES = {"local": "Local", "fedavg": "FedAvg"}
Gains = Mapping[str, GainLine | None]
"""Reference -> gains over it."""


def clients_section(group: RunGroup, name: str, drawings: Drawings) -> Html:
    """Gains of every client over Local and over FedAvg, as a chart and as tables that sort."""
    references = {title: row for m, title in REFERENCES.items() if (row := group.named(m))}
    over = {
        row.label: {
            title: gains(row, other) for title, other in references.items() if other is not row
        }
        for row in group.rows
    }
    most = max(60, MOST_ROWS // len(group.rows))
    tables = [
        tag(
            "div",
            _client_table(group, row, f"{name}-client-{i}", over[row.label], references, most),
            class_="choice",
            data_choice=row.label,
        )
        for i, row in enumerate(group.rows)
    ]
    nothing = "No run of local or fedavg is among these, so there is no gain to show."
    return tag(
        "section",
        tag("h3", "Clients"),
        [_gain_figure(group, name, title, over, drawings) for title in references],
        None if references else tag("p", nothing, class_="quiet"),
        _head_table(group, name),
        tag("div", class_="controls", data_choose=name),
        tag("div", tables, class_="choices", data_choices=name, data_first=_first(group)),
        id=f"{name}-clients",
    )


def _first(group: RunGroup) -> str:
    """The table to begin with: of the best method that is not a reference."""
    others = [row for row in group.rows if row.method not in REFERENCES]
    best = best_row(RunGroup(others)) if others else None
    return (best or (others or group.rows)[0]).label


def _gain_figure(
    group: RunGroup, name: str, reference: str, over: Mapping[str, Gains], drawings: Drawings
) -> Html | None:
    lines = {label: line for label, by in over.items() if (line := by.get(reference)) is not None}
    if not lines:
        return None
    of = group.metric
    strips = [
        {
            "key": label,
            "values": [rounded(of.factor * g, 2 if of.share else 4) for g in line.gain.gains],
            "names": [_name(group, key) for key in line.clients],
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
            *(_points(value, of) for value in (g.mean, g.median, g.worst)),
            _name(group, line.clients[g.worst_client]),
            *(f"{100 * share:.0f}" for share in (g.helped, g.harmed, g.positive)),
        ]
        for label, line in lines.items()
        for g in [line.gain]
    ]
    caption = f"Gain over {reference}{' in points' if of.share else ''}, over clients"
    clear = (
        "; filled: outside its 95 % interval around zero, where chance alone puts about 2.5 % of"
        " clients on each side."
        if of.name == "accuracy"
        else "; how much of it is chance cannot be told from single numbers."
    )
    less = "less that of" if of.higher_is_better else "below that of"
    note = (
        f"Every dot is a client, below zero it loses by taking part{clear}"
        f" {of.head.removesuffix(of.unit)} {less} {reference} with the same seeds."
    )
    return drawings.figure(
        f"{name}-gain-{reference.lower()}",
        f"Gain of each client over {reference}",
        {"kind": "strip", "ylabel": "points" if of.share else of.title, "strips": strips},
        plain_table(f"{name}-gain-{reference.lower()}-table", caption, head, rows),
        note,
    )


def _points(value: float, of: Metric) -> str:
    """A gain; of shares in points."""
    return points(value, 1 if of.share else 3, of.factor)


def _verdict(line: GainLine, i: int) -> int:
    """1 gains, -1 loses, 0 within its noise."""
    g, error = line.gain.gains[i], line.gain.errors[i]
    within = g == 0 if math.isnan(error) else abs(g) <= WIDTH * error
    return 0 if within else (1 if g > 0 else -1)


# ------------------------------------------------------------------ single heads


def head_title(head: str) -> str:
    """A head's name for readers.

    >>> head_title("generic_head")
    'generic head'
    """
    return head.replace("_", " ")


def _head_table(group: RunGroup, name: str) -> Html | None:
    """What single heads of a method reach, over clients; None where no method shows any."""
    of = group.metric
    rows = [
        [
            Cell(row.label, row.label),
            Cell(head_title(head), head),
            percent(
                OverSeeds.of(run.mean(run.single_heads.get(head, {})) for run in row.shown),
                scale=of.factor,
            ),
            number(_worst(means, of), 2, of.factor),
            number(_share_ahead(means, client_means(row), of), 0, 100),
        ]
        for row in group.rows
        for head, means in head_means(row).items()
    ]
    if not rows:
        return None
    columns = [
        Column("Method", numeric=False),
        Column("Head", "what the head predicts alone", numeric=False),
        Column(of.head, f"mean over clients ± deviation over seeds; {HEAD_HINT}"),
        Column(f"Worst client{of.unit}", "the worst of any client"),
        Column("Ahead %", "clients for whom it alone does better than the whole model"),
    ]
    return html_table(f"{name}-heads", "Single heads", columns, rows)


def _worst(means: Mapping[ClientKey, ClientResult], of: Metric) -> float:
    return min((result.accuracy for result in means.values()), key=of.gain)


def _share_ahead(
    head: Mapping[ClientKey, ClientResult], whole: Mapping[ClientKey, ClientResult], of: Metric
) -> float | None:
    both = [key for key in head if key in whole]
    ahead = sum(of.gain(head[key].accuracy) > of.gain(whole[key].accuracy) for key in both)
    return ahead / len(both) if both else None


# ------------------------------------------------------------------ tables of clients


def _client_table(
    group: RunGroup,
    row: MethodRuns,
    name: str,
    over: Gains,
    references: Mapping[str, MethodRuns],
    most: int,
) -> Html:
    means, heads, of = client_means(row), head_means(row), group.metric
    others = {
        title: client_means(on_common_seeds(row, other)[1])
        for title, other in references.items()
        if other is not row
    }
    labels = [references[title].label for title in others]
    by_rows = of.name == "accuracy"
    gain_hint = GAIN_HINT if by_rows else "above zero is better; on the seeds both have"
    verdict_hint = VERDICT_HINT if by_rows else "better or worse; chance is not looked at"
    positions = {
        title: {key: i for i, key in enumerate(line.clients)}
        for title, line in over.items()
        if line
    }
    columns = [
        Column("Client"),
        Column("Training rows"),
        Column("Test rows"),
        Column(of.head, "mean over all seeds"),
        *(Column(f"{head_title(head)}{of.unit}", HEAD_HINT) for head in heads),
        *(
            Column(f"{label}{of.unit}", f"{words(of.name)} of the same client, {BOTH}")
            for label in labels
        ),
        *(Column(f"Gain over {label}", gain_hint) for label in labels),
        *(Column(f"Against {label}", verdict_hint, numeric=False) for label in labels),
    ]
    first = next(iter(over.values()), None)
    keys = _most_telling(means, first, most, of)
    rows = [
        [
            client_cell(group, key),
            _training_rows(group, key),
            Cell(str(means[key].rows), means[key].rows),
            accuracy_cell(means, key, of),
            *(accuracy_cell(results, key, of) for results in heads.values()),
            *(accuracy_cell(results, key, of) for results in others.values()),
            *(_gain_cell(over[title], positions.get(title, {}).get(key), of) for title in others),
            *(_verdict_cell(over[title], positions.get(title, {}).get(key)) for title in others),
        ]
        for key in keys
    ]
    least = "gain" if first else "reach"
    some = f", the {len(keys)} of {len(means)} that {least} least" if len(keys) < len(means) else ""
    return html_table(name, f"{row.label}: clients{some}", columns, rows)


def accuracy_cell(results: Mapping[ClientKey, ClientResult], key: ClientKey, of: Metric) -> Cell:
    """Of shares in percent; a dash where the client was not scored."""
    value = results[key].accuracy if key in results else None
    return number(value, 1 if of.share else 3, of.factor)


def _most_telling(
    means: Mapping[ClientKey, ClientResult], line: GainLine | None, most: int, of: Metric
) -> list[ClientKey]:
    """All clients in their order, or of too many those that gain, or reach, least."""
    if len(means) <= most:
        return list(means)
    gain_of = {} if line is None else dict(zip(line.clients, line.gain.gains, strict=True))

    def telling(key: ClientKey) -> tuple[float, float]:
        return gain_of.get(key, 0.0), of.gain(means[key].accuracy)

    return sorted(means, key=telling)[:most]


def client_cell(group: RunGroup, key: ClientKey) -> Cell:
    """A client's name; with partitions of their own, seeds tell clients of the same name apart."""
    cid, name = key[1], _name(group, key)
    if group.same_partition:
        return Cell(name, cid)
    seed = _run_of(group, key).config.seed
    return Cell(f"seed {seed}: {name}", 1e6 * seed + cid)


def _run_of(group: RunGroup, key: ClientKey) -> StoredRun:
    """A run with the client's partition, or with the test set."""
    return next(run for run in group.runs if key[0] in (run.tested, run.partition))


def _name(group: RunGroup, key: ClientKey) -> str:
    return _run_of(group, key).name_of(key[1])


def _training_rows(group: RunGroup, key: ClientKey) -> Cell:
    run = _run_of(group, key)
    if run.on_shared_tests or not sum(run.sizes[key[1]]):
        return Cell(NONE)
    rows = run.sizes[key[1]][0]
    return Cell(str(rows), rows)


def _gain_cell(line: GainLine | None, i: int | None, of: Metric) -> Cell:
    if line is None or i is None:
        return Cell(NONE)
    g, error = line.gain.gains[i], line.gain.errors[i]
    tone = "loses" if g < 0 else "gains" if g > 0 else ""
    noise = "" if math.isnan(error) else f" ± {of.factor * WIDTH * error:.1f}"
    return Cell(f"{_points(g, of)}{noise}", g, tone)


def _verdict_cell(line: GainLine | None, i: int | None) -> Cell:
    if line is None or i is None:
        return Cell(NONE)
    verdict, g = _verdict(line, i), line.gain.gains[i]
    if verdict:
        return Cell("▲ gains" if g > 0 else "▼ loses", verdict, "gains" if g > 0 else "loses")
    return Cell("equal" if g == 0 else "within noise", 0)
