"""The first tables of a report: how well, how surely, how evenly and at what price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedloom.core.metrics import Metric, words
from fedloom.drawing.html import Html, join, tag
from fedloom.drawing.tables import NONE, Cell, Column, html_table, number, p_value, percent, points
from fedloom.launch.tables import OverSeeds, to_csv, to_latex
from fedloom.report.curves import model_name
from fedloom.report.groups import MethodRuns, RunGroup
from fedloom.report.numbers import (
    AccuracyLine,
    CostLine,
    Versus,
    accuracy_line,
    best_row,
    comparisons,
    cost_line,
    default_targets,
)

Lines = dict[str, AccuracyLine]
"""By the method's label."""
Tests = dict[tuple[str, str], Versus]
"""(method, reference) -> how they differ."""
POOLING = (
    "Clients are not pooled over seeds: all clients of a seed share its luck, so a t test on all"
    " values of seeds and clients would call far too many chance differences real. The best method"
    " is chosen on the same numbers it is then compared on; read differences with the interval"
    " beside them."
)
WORST_BY_CHANCE = (
    "What the worst client would be expected to reach if all clients were served equally well, so"
    " that they differ only by the luck of their few test rows. A worst client far below it is"
    " served worse than others; one near it may just be unlucky."
)
WITHOUT_NOISE = (
    "How much clients really differ: the deviation beside it less what the luck of finite test rows"
    " alone would add, in points. 0: luck explains all of it."
)


def summary_section(group: RunGroup, name: str, targets: Sequence[float] = ()) -> Html:
    """Accuracy with its tests, fairness, cost."""
    best, fedavg = best_row(group), group.named("fedavg")
    references = {row.label: row for row in (best, fedavg) if row is not None}
    tests = comparisons(group, list(references.values()))
    lines = {row.label: accuracy_line(row) for row in group.rows}
    return tag(
        "section",
        tag("h3", "Summary"),
        _in_short(group, best, lines, tests),
        _accuracy_table(group, name, lines, list(references.values()), tests),
        _how_tested(tests, group.first.weighted, group.metric),
        _files(group, name),
        _fairness_table(group, name, lines),
        _cost_tables(group, name, list(targets) or default_targets(group), fedavg),
        _other_models(group),
        id=f"{name}-summary",
    )


def state_of(row: MethodRuns) -> str:
    """What a reader must know of a row's runs before believing its numbers."""
    states = {
        "unfinished": [run for run in row.runs if run.summary is None],
        "stopped early": [run for run in row.runs if run.summary and run.summary.stopped],
    }
    return "; ".join(
        f"{state}: "
        + ", ".join(f"seed {r.config.seed} at {r.done} of {r.config.rounds}" for r in runs)
        for state, runs in states.items()
        if runs
    )


def method_cell(row: MethodRuns) -> Cell:
    """A row's header, with a mark if it is unfinished."""
    state = state_of(row)
    mark = tag("span", state, class_="badge") if state else None
    return Cell(join(tag("span", row.label, class_="method"), mark), row.label)


def _in_short(group: RunGroup, best: MethodRuns | None, lines: Lines, tests: Tests) -> Html | None:
    if best is None:
        return tag("p", "No run has ended yet; the numbers are those of the newest round.")
    top = lines[best.label].accuracy
    assert top is not None  # a best row has a mean
    seeds = f"{len(best.ended)} seed{'s' if len(best.ended) > 1 else ''}"
    of = group.metric
    most = "highest" if of.higher_is_better else "lowest"
    verb = f"has the {most} {words(of.name)}," if len(group.rows) > 1 else "reached"
    sentence: list[object] = [
        tag("strong", best.label),
        f" {verb} {top.shown(of)} over {seeds}",
    ]
    against = [v for (_, reference), v in tests.items() if reference == best.label and v.test]
    clear = sum(versus.holm < 0.05 for versus in against)
    if against and all(math.isnan(versus.holm) for versus in against):
        sentence.append("; with one seed nothing can be said about chance")
    elif against:
        sentence.append(
            f"; {clear} of {len(against)} other methods differ from it by more than chance (Holm,"
            " 5 %)"
        )
    return tag("p", *sentence, ".", class_="lead")


def _accuracy_table(
    group: RunGroup, name: str, lines: Lines, references: list[MethodRuns], tests: Tests
) -> Html:
    weighted, of = group.first.weighted, group.metric
    result = f"{_model_of(group, 'result_at')}; protocol {group.first.config.protocol}"
    over = "weighted by test rows" if weighted else "clients count alike"
    against = (
        f"difference{' in points' if of.share else ''} with its interval, which leaves out 0"
        " exactly where p is below 5 %; p after Holm"
    )
    against += ", unweighted over clients" if weighted else ""
    joined = "clients that took no part in the training, after they joined"
    compared = references if len(group.rows) > 1 else []
    lowest = f"{'lowest' if of.higher_is_better else 'highest'} {words(of.name)}"
    columns = [
        Column("Method", numeric=False),
        Column("Seeds", "runs that ended"),
        Column(of.head, f"{result}; {over}; mean ± deviation over seeds", of.better),
        *(Column(f"Against {row.label}", against) for row in compared),
        Column(f"Worst client{of.unit}", f"the {lowest} of any client; {result}", of.better),
        Column(f"Worst tenth{of.unit}", f"mean of the worst tenth of clients; {result}", of.better),
        Column(f"Newcomers{of.unit}", joined, of.better),
    ]
    rows = [
        [
            method_cell(row),
            Cell(str(len(row.ended)), len(row.ended)),
            percent((line := lines[row.label]).accuracy, scale=of.factor),
            *(_against(row, reference, tests, of) for reference in compared),
            percent(line.worst, scale=of.factor),
            percent(line.worst_decile, scale=of.factor),
            percent(line.newcomers, scale=of.factor),
        ]
        for row in group.rows
    ]
    seeds = ", mean ± standard deviation over seeds" if _several_seeds(group) else ""
    head = of.head.removesuffix(of.unit)
    caption = f"{head}{seeds}{'; the best in bold' if len(group.rows) > 1 else ''}"
    optional = [f"Newcomers{of.unit}"]
    return _method_table(group, f"{name}-accuracy", caption, columns, rows, optional)


def _several_seeds(group: RunGroup) -> bool:
    return any(len(row.shown) > 1 for row in group.rows)


def _method_table(
    group: RunGroup,
    name: str,
    caption: str,
    columns: list[Column],
    rows: list[list[Cell]],
    optional: Sequence[str] = (),
) -> Html:
    """A row for every method; `optional` columns are left out where no method has a number."""
    shown = [
        i
        for i, column in enumerate(columns)
        if column.head not in optional or any(row[i].sort is not None for row in rows)
    ]
    return html_table(
        name,
        caption,
        [columns[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        bold=[bool(row.ended) for row in group.rows],
    )


def _against(row: MethodRuns, reference: MethodRuns, tests: Tests, of: Metric) -> Cell:
    """The difference with its interval and p; a pair that was tested the other way is turned."""
    sign = 1.0
    versus = tests.get((row.label, reference.label))
    if versus is None:
        sign, versus = -1.0, tests.get((reference.label, row.label))
    if versus is None or row is reference:
        return Cell(NONE)
    if versus.test is None:
        return Cell("no common seed")
    mean = sign * versus.test.mean
    if math.isnan(versus.test.p):
        return Cell(f"{_points(mean, of)} (no test)", mean)
    low, high = sorted(sign * end for end in versus.interval)
    mark = " *" if versus.holm < 0.05 else ""
    p = tag("small", f"p {p_value(versus.holm)}{mark}")
    interval = f"[{_points(low, of)}, {_points(high, of)}]"
    return Cell(join(f"{_points(mean, of)} {interval}", tag("br"), p), mean)


def _points(value: float, of: Metric) -> str:
    """A difference; of shares in points."""
    return points(value, 1 if of.share else 3, of.factor)


def _how_tested(tests: Tests, weighted: bool, of: Metric) -> Html | None:
    names = list(dict.fromkeys(v.test.test for v in tests.values() if v.test is not None))
    if not names:
        return None
    tested = any(v.test and not math.isnan(v.test.p) for v in tests.values())
    holm = (
        f" Holm's correction over all {len(tests)} comparisons; * is p below 5 %. The intervals are"
        " of the same procedure, each at the error rate its comparison was tested at, so they leave"
        " out 0 exactly where p is below 5 %."
        if tested
        else ""
    )
    results = "accuracies" if of.name == "accuracy" else "results"
    unweighted = f"; unweighted over clients, unlike the {results}" if weighted else ""
    return tag(
        "div",
        tag("p", "Test: ", "; ".join(names), unweighted, ".", holm),
        tag("p", POOLING),
        class_="quiet",
    )


def _files(group: RunGroup, name: str) -> Html | None:
    """The comparison in forms that other programs read; methods without a result are not in it."""
    results = group.results
    if not results:
        return None
    files = {"csv": to_csv(results), "tex": to_latex(results)}
    return tag(
        "details",
        tag("summary", "The comparison as CSV and LaTeX"),
        tag(
            "p", "With every seed's result; shares are between 0 and 1 in the CSV.", class_="quiet"
        ),
        [
            tag(
                "div",
                tag("pre", tag("code", text), id=f"{name}-file-{ending}", tabindex="0"),
                class_="commands file",
                data_copy=f"{name}-file-{ending}",
                data_save=f"comparison.{ending}",
            )
            for ending, text in files.items()
        ],
        id=f"{name}-files",
        class_="data",
    )


def _fairness_table(group: RunGroup, name: str, lines: Lines) -> Html:
    five = "mean of the five best rounds, chosen on test rows: "
    chance = max((v.by_chance for v in lines.values() if not math.isnan(v.by_chance)), default=0.0)
    of, model = group.metric, _model_of(group, "curve_at")
    lifted = f"{five}noise alone lifts it by {chance:.1f} deviations; {model}"
    last = f"mean of the last ten scored rounds, which nobody chose; {model}"
    of_rounds = [
        Column(f"Five best rounds{of.unit}", lifted, of.better),
        Column(
            f"… of worst client{of.unit}", f"{five}of the worst client of each; {model}", of.better
        ),
        Column(f"Last ten rounds{of.unit}", last, of.better),
    ]
    columns = [
        Column("Method", numeric=False),
        *of_rounds,
        Column("Deviation over clients", f"{'in points, ' if of.share else ''}over K", "low"),
        Column("… without noise", WITHOUT_NOISE, "low"),
        Column("Worst by chance %", WORST_BY_CHANCE),
        Column("Jain", "(Σa)² / (K Σa²): 1 is even", "high"),
        Column("Gini", "0 is even", "low"),
    ]
    rows = [
        [
            method_cell(row),
            percent((line := lines[row.label]).best_five, scale=of.factor),
            percent(line.worst_best_five, scale=of.factor),
            percent(line.last_ten, scale=of.factor),
            percent(line.std, scale=of.factor),
            percent(line.true_std),
            percent(line.worst_by_chance),
            _mean(line.jain, 4),
            _mean(line.gini, 4),
        ]
        for row in group.rows
    ]
    caption = "How evenly clients are served, and, where enough rounds were scored, best rounds"
    of_accuracies = ["… without noise", "Worst by chance %", "Jain", "Gini"]
    too_few = [*(column.head for column in of_rounds), *of_accuracies]
    table = _method_table(group, f"{name}-fairness", caption, columns, rows, too_few)
    return tag("div", tag("h4", "Rounds and fairness"), table)


def _cost_tables(
    group: RunGroup, name: str, targets: list[float], fedavg: MethodRuns | None
) -> Html:
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
        at = group.metric.shown(target, 1)
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
    whose = "FedAvg" if fedavg is not None else "every method"
    note = (
        f"The target is what {whose} reached by its last round in every seed, unless --target gives"
        " one. A dash: never reached, or the result is of another model than the curve."
    )
    return tag(
        "div",
        tag("h4", "Cost, and the way to a target"),
        _method_table(group, f"{name}-cost", "Cost", columns, rows),
        tag("p", note, class_="quiet"),
    )


def _model_of(group: RunGroup, which: Literal["curve_at", "result_at"]) -> str:
    """For hints: the models that a column is of."""
    keys = [getattr(run, which) for row in group.rows for run in row.shown]
    names = dict.fromkeys(model_name(at) for at in keys if at is not None)
    return f"model {', or '.join(names)}"


def _other_models(group: RunGroup) -> Html | None:
    """Whose curve and result are of two models, which do not belong side by side."""
    apart = [row for row in group.rows if not row.shown[0].curve_leads_to_result]
    if not apart:
        return None
    run = apart[0].shown[0]
    assert run.result_at is not None  # it differs from the curve's
    curve = (
        "" if run.curve_at is None else f"; the curve is of the model {model_name(run.curve_at)}"
    )
    note = (
        f"Of {', '.join(row.label for row in apart)}, {words(group.metric.name)}, worst clients and"
        f" fairness are of the model {model_name(run.result_at)}, which is not scored along the"
        f" way{curve}."
        " Best and last rounds and the way to a target would be those of the curve's model, so"
        " they are left out."
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


def _mean(value: OverSeeds | None, digits: int) -> Cell:
    return number(None if value is None else value.mean, digits)
