"""The first tables of a report: how well, how surely, how evenly and at what price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedloom.drawing.html import Html, join, tag
from fedloom.drawing.tables import NONE, Cell, Column, html_table, number, p_value, percent, points
from fedloom.report.curves import moment_name
from fedloom.report.groups import Group, Row
from fedloom.report.numbers import (
    AccuracyLine,
    CostLine,
    Spread,
    Versus,
    accuracy_line,
    best_row,
    comparisons,
    cost_line,
    default_targets,
)

POOLING = (
    "Clients are not pooled over seeds: all clients of a seed share its luck, so a t test on all"
    " values of seeds and clients would call far too many chance differences real. The best method"
    " is chosen on the same numbers it is then compared on; read differences with the interval"
    " beside them."
)


def summary_section(group: Group, name: str, targets: Sequence[float] = ()) -> Html:
    """Accuracy with its tests, fairness, cost."""
    best, fedavg = best_row(group), group.named("fedavg")
    references = [r for r in (best, fedavg) if r is not None]
    references = list({r.label: r for r in references}.values())
    found = comparisons(group, references)
    weighted = group.first.value == "weighted"
    lines = {row.label: accuracy_line(row) for row in group.rows}
    return tag(
        "section",
        tag("h3", "Summary"),
        _in_short(group, best, lines, found),
        _accuracy_table(group, name, lines, references, found),
        _tests(found, weighted),
        _fairness_table(group, name, lines),
        _cost_tables(group, name, list(targets) or default_targets(group), fedavg),
        _other_models(group),
        id=f"{name}-summary",
    )


def state_of(row: Row) -> str:
    """What a reader must know of a row's runs before believing its numbers."""
    open_runs = [run for run in row.runs if run.summary is None]
    if not open_runs:
        return ""
    at = ", ".join(f"seed {r.config.seed} at {r.done} of {r.config.rounds}" for r in open_runs)
    return f"unfinished: {at}"


def method_cell(row: Row) -> Cell:
    """A row's header, with a mark if it is unfinished."""
    state = state_of(row)
    mark = tag("span", state, class_="badge") if state else None
    return Cell(join(tag("span", row.label, class_="method"), mark), row.label)


def _in_short(
    group: Group,
    best: Row | None,
    lines: dict[str, AccuracyLine],
    found: dict[tuple[str, str], Versus],
) -> Html | None:
    if best is None:
        return tag("p", "No run has ended yet; the numbers are those of the newest round.")
    top = lines[best.label].accuracy
    assert top is not None  # a best row has a mean
    seeds = len(best.ended)
    said: list[object] = [
        tag("strong", best.label),
        f" has the highest accuracy, {percent(top).text} % over {seeds} seed"
        f"{'s' if seeds > 1 else ''}"
        if len(group.rows) > 1
        else f" reached {percent(top).text} % over {seeds} seed{'s' if seeds > 1 else ''}",
    ]
    tests = [v for (_, reference), v in found.items() if reference == best.label and v.test]
    clear = sum(v.holm < 0.05 for v in tests)
    if tests and all(math.isnan(v.holm) for v in tests):
        said.append("; with one seed nothing can be said about chance")
    elif tests:
        said.append(
            f"; {clear} of {len(tests)} other methods differ from it by more than chance (Holm,"
            " 5 %)"
        )
    return tag("p", *said, ".", class_="lead")


def _accuracy_table(
    group: Group,
    name: str,
    lines: dict[str, AccuracyLine],
    references: list[Row],
    found: dict[tuple[str, str], Versus],
) -> Html:
    weighted = group.first.value == "weighted"
    result = f"{_model_of(group, 'result_at')}; protocol {group.first.config.protocol}"
    over = "weighted by test rows" if weighted else "clients count alike"
    against = "difference in points, 95 % interval, p after Holm"
    against += ", unweighted over clients" if weighted else ""
    columns = [
        Column("Method", numeric=False),
        Column("Seeds", "runs that ended"),
        Column("Accuracy %", f"{result}; {over}; mean ± deviation over seeds", "high"),
        *(Column(f"Against {r.label}", against) for r in references if len(group.rows) > 1),
        Column("Worst client %", f"the lowest accuracy of any client; {result}", "high"),
        Column("Worst tenth %", f"mean of the worst tenth of clients; {result}", "high"),
    ]
    rows = [
        [
            method_cell(row),
            Cell(str(len(row.ended)), len(row.ended)),
            percent((line := lines[row.label]).accuracy),
            *(_against(row, r, found) for r in references if len(group.rows) > 1),
            percent(line.worst),
            percent(line.worst_decile),
        ]
        for row in group.rows
    ]
    caption = "Accuracy, mean ± standard deviation over seeds; the best in bold"
    ended = [bool(row.ended) for row in group.rows]
    return html_table(f"{name}-accuracy", caption, columns, rows, bold=ended)


def _against(row: Row, reference: Row, found: dict[tuple[str, str], Versus]) -> Cell:
    """The difference with its interval and p; a pair that was tested the other way is turned."""
    sign = 1.0
    versus = found.get((row.label, reference.label))
    if versus is None:
        sign, versus = -1.0, found.get((reference.label, row.label))
    if versus is None or row is reference:
        return Cell(NONE)
    if versus.test is None:
        return Cell("no common seed")
    low, high = sorted(sign * end for end in versus.test.interval)
    mean = sign * versus.test.mean
    if math.isnan(versus.test.p):
        return Cell(f"{points(mean)} (no test)", mean)
    mark = " *" if versus.holm < 0.05 else ""
    sure = tag("small", f"p {p_value(versus.holm)}{mark}")
    return Cell(join(f"{points(mean)} [{points(low)}, {points(high)}]", tag("br"), sure), mean)


def _tests(found: dict[tuple[str, str], Versus], weighted: bool) -> Html | None:
    said = list(dict.fromkeys(v.test.test for v in found.values() if v.test is not None))
    if not said:
        return None
    tested = any(v.test and not math.isnan(v.test.p) for v in found.values())
    holm = (
        f" Holm's correction over all {len(found)} comparisons; * is p below 5 %." if tested else ""
    )
    unweighted = "; unweighted over clients, unlike the accuracies" if weighted else ""
    return tag(
        "div",
        tag("p", "Test: ", "; ".join(said), unweighted, ".", holm),
        tag("p", POOLING),
        class_="quiet",
    )


def _fairness_table(group: Group, name: str, lines: dict[str, AccuracyLine]) -> Html:
    five = "mean of the five highest rounds, chosen on test rows: "
    chance = max((v.by_chance for v in lines.values() if not math.isnan(v.by_chance)), default=0.0)
    model = _model_of(group, "curve_at")
    lifted = f"{five}noise alone lifts it by {chance:.1f} deviations; {model}"
    last = f"mean of the last ten scored rounds, which nobody chose; {model}"
    columns = [
        Column("Method", numeric=False),
        Column("Five best rounds %", lifted, "high"),
        Column("… of worst client %", f"{five}of the lowest client of each; {model}", "high"),
        Column("Last ten rounds %", last, "high"),
        Column("Deviation over clients", "in points, over K", "low"),
        Column("… without noise", "what finite test sets add is taken off", "low"),
        Column("Worst by chance %", "expected lowest if all clients were served equally well"),
        Column("Jain", "(Σa)² / (K Σa²): 1 is even", "high"),
        Column("Gini", "0 is even", "low"),
    ]
    rows = [
        [
            method_cell(row),
            percent((line := lines[row.label]).best_five),
            percent(line.worst_best_five),
            percent(line.last_ten),
            percent(line.std),
            percent(line.true_std),
            percent(line.worst_by_chance),
            _mean(line.jain, 4),
            _mean(line.gini, 4),
        ]
        for row in group.rows
    ]
    ended = [bool(row.ended) for row in group.rows]
    caption = "Best rounds, and how evenly clients are served"
    table = html_table(f"{name}-fairness", caption, columns, rows, bold=ended)
    return tag("div", tag("h4", "Rounds and fairness"), table)


def _cost_tables(group: Group, name: str, targets: list[float], fedavg: Row | None) -> Html:
    lines = [cost_line(row, targets, fedavg) for row in group.rows]
    columns = [
        Column("Method", numeric=False),
        Column("Parameters sent", "numbers that one client sends in one round", "low"),
        Column("MB sent", "by the average client over the run (1 MB = 10⁶ bytes)", "low"),
        Column("MB received", "by the average client over the run", "low"),
        Column("Seconds per round", "median, the first left out, evaluation included", "low"),
        Column("… of local training", "all clients added up, median", "low"),
        Column("Seconds", "of the whole run by the clock, evaluation included", "low"),
    ]
    model = _model_of(group, "curve_at")
    for target in targets:
        at = f"{100 * target:.1f} %"
        reached = f"first round that reaches it, median over seeds; {model}"
        sent = f"sent and received until then by the average client; {model}"
        columns += [
            Column(f"Rounds to {at}", reached, "low"),
            Column(f"MB to {at}", sent, "low"),
        ]
        if fedavg is not None:
            faster = f"FedAvg's rounds over these; {model}"
            columns.append(Column(f"Speed-up to {at}", faster, "high"))
    rows = [
        [method_cell(row), *_cost_cells(line, fedavg is not None)]
        for row, line in zip(group.rows, lines, strict=True)
    ]
    ended = [bool(row.ended) for row in group.rows]
    table = html_table(f"{name}-cost", "Cost", columns, rows, bold=ended)
    told = (
        "what FedAvg reached by its last round in every seed"
        if fedavg is not None
        else "what every method reached by its last round in every seed"
    )
    note = (
        f"The target is {told} unless --target gives one. A dash: never reached, or the result is"
        " of another model than the curve."
    )
    return tag(
        "div", tag("h4", "Cost, and the way to a target"), table, tag("p", note, class_="quiet")
    )


def _model_of(group: Group, which: Literal["curve_at", "result_at"]) -> str:
    """For hints: the models that a column is of."""
    runs = [run for row in group.rows for run in row.shown]
    return f"model {', or '.join(dict.fromkeys(moment_name(getattr(r, which)) for r in runs))}"


def _other_models(group: Group) -> Html | None:
    """Whose curve and result are of two models, which do not belong side by side."""
    apart = [row for row in group.rows if not row.shown[0].curve_leads_to_result]
    if not apart:
        return None
    run = apart[0].shown[0]
    note = (
        f"Of {', '.join(row.label for row in apart)}, accuracy, worst clients and fairness are of"
        f" the model {moment_name(run.result_at)}, which is not scored along the way; the curve is"
        f" of the model {moment_name(run.curve_at)}. Best and last rounds and the way to a target"
        " would be those of the curve's model, so they are left out."
    )
    return tag("p", note, class_="quiet")


def _cost_cells(line: CostLine, with_speed_up: bool) -> list[Cell]:
    cells = [
        number(line.parameters, 0),
        _mean(line.megabytes_up, 2),
        _mean(line.megabytes_down, 2),
        _mean(line.round_seconds, 3),
        _mean(line.training_seconds, 3),
        _mean(line.seconds, 1),
    ]
    for way in line.targets:
        cells += [number(way.rounds, 0), number(way.megabytes, 2)]
        if with_speed_up:
            cells.append(number(way.speed_up, 1))
    return cells


def _mean(found: Spread | None, digits: int) -> Cell:
    return number(None if found is None else found.mean, digits)
