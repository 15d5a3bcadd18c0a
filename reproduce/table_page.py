"""docs/methods-table.md from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy import stats
from table_results import FRACTIONS, DataSet, Measured, Results, Rows, complete

from fedloom.analysis.rankings import Ranking, friedman, ranks
from fedloom.core.protocol import PROTOCOLS

NOTHING = "-"
DEFAULT = "fedloom"
"""The protocol of the table."""
SHOWN = {
    "fedloom": "what a client ends up with, last round",
    "dbe": "the same, best round on test rows",
    "fedbr": "the global model where there is one, mean of the five best rounds on test rows",
    "dualfed": "as received, every client's best round on test rows",
    "fedcr": "after ten epochs of the head",
    "fedpac": "tuned, or just trained where clients keep something personal",
}
"""Protocols by which all runs are judged, and what they test."""
assert set(SHOWN) <= set(PROTOCOLS)


@dataclass(frozen=True)
class Standing:
    """All rows, ranked over the data sets on which all are measured."""

    names: tuple[str, ...]
    """Best mean rank first."""
    ranking: Ranking
    mean_rank: Mapping[str, float]
    alike_with_best: tuple[str, ...]
    """Rows whose mean rank is within Nemenyi's critical difference of the best one."""

    @classmethod
    def of(cls, rows: Rows, results: Results) -> Standing | None:
        """None while fewer than two data sets are measured whole."""
        names, whole = list(rows.methods), measured_whole(rows, results)
        if len(names) < 3 or len(whole) < 2:
            return None
        scores = [[score(by_row[name]) for name in names] for by_row in whole]
        ranking = friedman(scores)
        mean_rank = dict(zip(names, ranking.mean_ranks, strict=True))
        ordered = sorted(names, key=lambda name: mean_rank[name])
        alike = [names[place] for place in ranking.alike_with_best()]
        return cls(tuple(ordered), ranking, mean_rank, tuple(alike))


def measured_whole(rows: Rows, results: Results) -> list[Mapping[str, Measured]]:
    """The results of the data sets on which every row is measured with every seed."""
    return [
        by_row
        for by_row in results.values()
        if all(complete(by_row.get(name), rows) for name in rows.methods)
    ]


def score(measured: Measured) -> float:
    """By which a row is ranked: its mean accuracy, 0 where a seed broke down."""
    return 0.0 if measured.broken or not measured.seeds else measured.mean("accuracy")


def page(rows: Rows, data_sets: Sequence[DataSet], results: Results, lessons: str) -> str:
    """The whole page; cells that are not measured yet are dashes."""
    standing = Standing.of(rows, results)
    parts = [
        "# Every method, tuned with the same effort",
        "Written by `python reproduce/table.py` from [reproduce/methods](../reproduce/methods); do"
        " not edit.",
        how_much(rows, results),
        HOW.format(trials=rows.trials, seeds=len(rows.seeds), methods=len(rows.methods)),
        "\n".join(f"- {data.title}. {division(data)}" for data in data_sets),
        *(["## What it teaches", lessons.strip()] if lessons.strip() else []),
        "## All data sets",
        over_all(rows, data_sets, results, standing),
        *significance(standing),
        "## FedAvg's curves",
        curves(data_sets, results),
        *protocols(rows, data_sets, results),
    ]
    for data in data_sets:
        parts += [f"## {data.short}", one_data_set(rows, results[data.name])]
    return "\n\n".join(parts) + "\n"


HOW = (
    "Every one of the {methods} rows gets the same effort: {trials} points of its hyper-parameters"
    " by successive halving (a third goes on, [fedloom tune](tune.md)), scored on validation rows"
    " of all clients and never on test rows, then one run with the best of them for each of {seeds}"
    " seeds; the test rows are looked at once, at the end of these. (On digits a row that one seed"
    " tests on may be a validation row of the tuning's division; elsewhere no tuning sees a test"
    " row.) What a method declares as worth"
    " tuning is tuned, the learning rate always; the first point is always its defaults. Data,"
    " network, rounds, batch size and one local epoch are the same for all, but for the rows with"
    " BatchNorm, whose network has it, and for methods that change the network themselves. FedFomo"
    " reads the clients' validation rows itself, as in its paper, so that they help it twice. Equal"
    " rounds are not equal work: CPU seconds stand beside (one core, evaluations included)."
    " Accuracy is the mean over clients of the model each would use, on its own test rows, in the"
    " last round (protocol `fedloom`); ± is half of the 95 % interval over seeds, by Student's law;"
    " the worst tenth are the tenth of the clients that are served worst, at least one. MB: sent by"
    " one client in the whole run."
)


def division(data: DataSet) -> str:
    """What a second seed has in common with the first."""
    if data.redrawn:
        return (
            "Each seed divides the rows anew, so that intervals cover the draw; the tuning has seed"
            " 0's division."
        )
    return "Clients are given by nature, and all seeds share one division of their rows."


def how_much(rows: Rows, results: Results) -> str:
    """How many cells of the table are measured."""
    wanted = len(rows.methods) * len(results)
    measured = sum(
        complete(by_row.get(name), rows) for by_row in results.values() for name in rows.methods
    )
    if measured == wanted:
        return f"All {wanted} pairs of a method and a data set are measured."
    return (
        f"**{measured} of {wanted} pairs of a method and a data set are measured so far**; a dash"
        " is one that is not, and mean ranks are over the data sets on which all rows are measured."
    )


# ------------------------------------------------------------------ all data sets


def over_all(
    rows: Rows, data_sets: Sequence[DataSet], results: Results, standing: Standing | None
) -> str:
    """One line for every row, the best mean rank first; without one as they are listed."""
    lines = []
    for name in rows.methods if standing is None else standing.names:
        rank = NOTHING if standing is None else number(standing.mean_rank.get(name), 1)
        lines.append([name, rank, *(accuracy(results[d.name].get(name)) for d in data_sets)])
    return markdown(["method", "mean rank", *(f"{d.short} %" for d in data_sets)], lines)


def significance(standing: Standing | None) -> list[str]:
    """Friedman's test and who cannot be told from the best."""
    if standing is None:
        return []
    ranking, alike = standing.ranking, standing.alike_with_best
    return [
        f"Friedman's test over {ranking.data_sets} data sets and {len(standing.names)} rows:"
        f" chi-squared {ranking.chi2:.1f} with {ranking.df} degrees of freedom, p ="
        f" {ranking.p:.2g}. Nemenyi's critical difference of mean ranks at 5 % is"
        f" {ranking.critical_difference:.1f}: {len(alike)} rows are not told from the best,"
        f" {standing.names[0]}"
        + (
            f"; worse than it are {', '.join(standing.names[len(alike) :])}."
            if len(alike) < len(standing.names)
            else ", that is all of them: so many methods over so few data sets can hardly be told"
            " apart by ranks alone, and the intervals above say more."
        )
    ]


def curves(data_sets: Sequence[DataSet], results: Results) -> str:
    """FedAvg's accuracy after parts of the rounds: whether the runs are long enough."""
    head = ["data", *(f"{100 * (i + 1) // FRACTIONS} %" for i in range(FRACTIONS))]
    lines = []
    for data in data_sets:
        measured = results[data.name].get("FedAvg")
        lines.append([data.short, *(percent(value) for value in mean_curve(measured))])
    note = "Accuracy % with the chosen settings after parts of the rounds, mean over seeds."
    return f"{note}\n\n{markdown(head, lines)}"


def mean_curve(measured: Measured | None) -> list[float | None]:
    """Over seeds, after each part of the rounds."""
    if measured is None or not measured.seeds:
        return [None] * FRACTIONS
    return [
        fmean(values) for values in zip(*(r.curve for r in measured.seeds.values()), strict=True)
    ]


# ------------------------------------------------------------------ protocols


def protocols(rows: Rows, data_sets: Sequence[DataSet], results: Results) -> list[str]:
    """How far the order of the methods moves when the same runs are judged otherwise."""
    about = "\n".join(f"- `{name}`: {text}" for name, text in SHOWN.items())
    others = [name for name in SHOWN if name != DEFAULT]
    taus = [
        [f"`{name}`", *(number(tau(results[d.name], name), 2) for d in data_sets)]
        for name in others
    ]
    return [
        "## How much the protocol alone moves the order",
        "The same runs, settings chosen for `fedloom`, judged as each of the papers does"
        " ([evaluation.md](evaluation.md)):",
        about,
        "Kendall's tau between the order under each protocol and under `fedloom` (1: the same"
        " order, 0: nothing in common), over the rows that both can judge:",
        markdown(["protocol", *(d.short for d in data_sets)], taus),
        "Mean rank over data sets under each protocol, among the rows that it can judge:",
        ranks_by_protocol(rows, results),
    ]


def tau(by_row: Mapping[str, Measured], protocol: str) -> float | None:
    """Between the orders of two protocols on one data set; None below three rows."""
    usual, other = _judged(by_row, DEFAULT), _judged(by_row, protocol)
    both = sorted(usual.keys() & other.keys())
    if len(both) < 3:
        return None
    return float(stats.kendalltau([usual[n] for n in both], [other[n] for n in both]).statistic)


def ranks_by_protocol(rows: Rows, results: Results) -> str:
    """Method by protocol."""
    lines = [
        [name, *(number(rank, 1) for rank in by_protocol)]
        for name, by_protocol in protocol_ranks(rows, results).items()
    ]
    return markdown(["method", *(f"`{name}`" for name in SHOWN)], lines)


def protocol_ranks(rows: Rows, results: Results) -> dict[str, list[float | None]]:
    """Row -> its mean rank under each of SHOWN, the best under the table's own protocol first."""
    columns = {protocol: mean_ranks(rows, results, protocol) for protocol in SHOWN}
    usual = columns[DEFAULT]
    ordered = sorted(rows.methods, key=lambda name: usual.get(name, len(rows.methods)))
    return {name: [column.get(name) for column in columns.values()] for name in ordered}


def mean_ranks(rows: Rows, results: Results, protocol: str) -> dict[str, float]:
    """Of the rows that are judged by a protocol on every data set that is measured whole."""
    columns = [_judged(by_row, protocol) for by_row in measured_whole(rows, results)]
    if len(columns) < 2:
        return {}
    judged = [name for name in rows.methods if all(name in column for column in columns)]
    if not judged:
        return {}
    scores = [[column[name] for name in judged] for column in columns]
    return dict(zip(judged, ranks(scores).mean(axis=0).tolist(), strict=True))


def _judged(by_row: Mapping[str, Measured], protocol: str) -> dict[str, float]:
    """The rows that a protocol can judge, with their numbers under it."""
    values = {name: measured.under(protocol) for name, measured in by_row.items()}
    return {name: value for name, value in values.items() if value is not None}


# ------------------------------------------------------------------ one data set


def one_data_set(rows: Rows, by_row: Mapping[str, Measured]) -> str:
    """Every row with its costs and settings, the best first."""
    return markdown(DETAILS, [detail(name, by_row.get(name)) for name in best_first(rows, by_row)])


def best_first(rows: Rows, by_row: Mapping[str, Measured]) -> list[str]:
    """All rows; those that are not measured come last."""
    return sorted(rows.methods, key=lambda name: -score(by_row[name]) if name in by_row else 1.0)


DETAILS = (
    "method",
    "accuracy %",
    "worst tenth %",
    "MB",
    "CPU s",
    "validation %, untuned",
    "tuned",
    "chosen settings",
)


def detail(name: str, measured: Measured | None) -> list[str]:
    """A line of a data set's table."""
    if measured is None:
        return [name, *[NOTHING] * (len(DETAILS) - 1)]
    ran = bool(measured.seeds)
    return [
        name,
        accuracy(measured),
        percent(measured.mean("worst_decile") if ran else None),
        number(measured.mean("megabytes") if ran else None, 2),
        number(measured.mean("cpu_seconds") if ran else None, 1),
        percent(measured.untuned),
        percent(measured.validation),
        chosen_settings(measured) or NOTHING,
    ]


def accuracy(measured: Measured | None) -> str:
    """Mean and interval, and what is missing of them."""
    if measured is None:
        return NOTHING
    seeds = len(measured.seeds) + len(measured.broken)
    if measured.broken:
        return f"broke down in {len(measured.broken)} of {seeds} runs"
    if not measured.seeds:
        return NOTHING
    half = measured.interval()
    return percent(measured.mean("accuracy")) + ("" if half is None else f" ± {100 * half:.1f}")


def chosen_settings(measured: Measured) -> str:
    """What was tuned, with the digits that matter."""
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in measured.settings.items()
    )


def percent(value: float | None) -> str:
    """A share in percent."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def number(value: float | None, digits: int) -> str:
    """A plain number."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
