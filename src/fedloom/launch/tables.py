"""Methods side by side over seeds, as pandas frames, CSV and LaTeX.

Everything here is made of labels with the summaries of their seeds, so `fedloom.compare` and
`fedloom report` write the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from fedloom.core.metrics import Metric, metric, words
from fedloom.record import Summary

if TYPE_CHECKING:  # half a second to import, for tables only
    import pandas

Labelled = tuple[str, Sequence[Summary]]
"""A method as it was written, and its runs, one for each seed."""

ALONE = "local"
"""The method that every client trains by itself."""
DEVIATION = "_std_over_seeds"
WITHOUT_DEVIATION = (
    *("std_over_clients", "rounds", "megabytes_up_per_client", "megabytes_down_per_client"),
)
LATEX_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


@dataclass(frozen=True)
class OverSeeds:
    """A number over seeds."""

    mean: float
    std: float | None
    """Between seeds, over S - 1; None of a single seed."""

    @classmethod
    def of(cls, values: Iterable[float | None]) -> OverSeeds | None:
        """None if no seed has the number.

        >>> OverSeeds.of([0.25, None, 0.75]).mean, OverSeeds.of([None])
        (0.5, None)
        """
        known = [v for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        return cls(fmean(known), stdev(known) if len(known) > 1 else None)

    def shown(self, of: Metric, digits: int = 2) -> str:
        """Mean ± deviation in the metric's unit.

        >>> OverSeeds.of([0.5, 0.52]).shown(metric("accuracy"), 1)
        '51.0 ± 1.4 %'
        """
        spread = "" if self.std is None else f" ± {of.factor * self.std:.{digits}f}"
        return f"{of.factor * self.mean:.{digits}f}{spread}{of.unit}"

    def percent(self, digits: int = 2) -> str:
        """Mean ± deviation in percent; of a single seed the number alone.

        >>> OverSeeds.of([0.5, 0.52]).percent(1), OverSeeds.of([0.5]).percent()
        ('51.0 ± 1.4', '50.00')
        """
        spread = "" if self.std is None else f" ± {100 * self.std:.{digits}f}"
        return f"{100 * self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class AgainstAlone:
    """Who is better off with a method than by training alone, as shares of all clients."""

    better: float
    worse: float

    @classmethod
    def of(cls, method: Sequence[Summary], alone: Sequence[Summary]) -> AgainstAlone | None:
        """Over all clients and the seeds that both have; None where they have none in common."""
        by_seed = {summary.seed: summary.result.by_client() for summary in alone}
        changes = [
            metric(summary.metric).sign * (value - by_seed[summary.seed][cid])
            for summary in method
            if summary.seed in by_seed
            for cid, value in summary.result.by_client().items()
            if cid in by_seed[summary.seed]
        ]
        changes = [change for change in changes if not math.isnan(change)]
        if not changes:
            return None
        return cls(fmean(c > 0 for c in changes), fmean(c < 0 for c in changes))


def training_alone(methods: Iterable[Labelled]) -> Sequence[Summary]:
    """The runs of the method `local`, if it is among these."""
    return next((runs for label, runs in methods if label.split("(")[0].strip() == ALONE), ())


def per_run(methods: Iterable[Labelled]) -> pandas.DataFrame:
    """One line for every method and seed; the result's column is called as its metric.

    Shares are between 0 and 1. `newcomers` is the result of clients that joined after the training.
    """
    from pandas import DataFrame

    return DataFrame(
        [
            {"method": label, "seed": summary.seed, **_numbers(summary), "run": summary.run}
            for label, summaries in methods
            for summary in summaries
        ]
    )


def per_method(methods: Iterable[Labelled]) -> pandas.DataFrame:
    """One line for every method: each seed's result, then means and deviations over seeds.

    Of a single seed, deviations are missing; columns that no run has are left out.
    """
    from pandas import DataFrame

    methods = list(methods)
    results = {(s.result.metric, s.seed) for _, summaries in methods for s in summaries}
    names = dict.fromkeys(key for _, summaries in methods for s in summaries for key in _numbers(s))
    columns = [
        *("method", "seeds"),
        *(f"{metric}_seed_{seed}" for metric, seed in sorted(results)),
        *(key for name in names for key in (name, f"{name}{DEVIATION}")),
    ]
    lines = [_line(label, summaries) for label, summaries in methods]
    return DataFrame(lines, columns=columns).dropna(axis="columns", how="all")


def to_csv(methods: Iterable[Labelled]) -> str:
    """`per_method` as CSV with a header line."""
    return str(per_method(methods).to_csv(index=False, lineterminator="\n"))


def to_latex(methods: Iterable[Labelled]) -> str:
    r"""A table for a paper (needs `\usepackage{booktabs}`): means and deviations over seeds in
    percent, the best in bold, then megabytes a client sent and seconds."""
    methods = list(methods)
    names = list(dict.fromkeys(s.result.metric for _, summaries in methods for s in summaries))
    of = metric(names[0]) if names else metric("accuracy")
    unit = " (\\%)" if of.share else ""
    scores = {f"{_latex(_capital(name))}{unit}": name for name in names}
    scores[f"Worst tenth{unit}"] = "worst_decile"
    if any(s.newcomers for _, summaries in methods for s in summaries):
        scores[f"Newcomers{unit}"] = "newcomers"
    costs = {"MB sent": ("megabytes_up_per_client", 2), "Seconds": ("seconds", 1)}
    columns = [
        [_latex(label) for label, _ in methods],
        *(
            _bold_best([over_seeds(summaries, key) for _, summaries in methods], of)
            for key in scores.values()
        ),
        *(
            [_plain(over_seeds(summaries, key), digits) for _, summaries in methods]
            for key, digits in costs.values()
        ),
    ]
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            "\\toprule",
            f"{' & '.join(['Method', *scores, *costs])} \\\\",
            "\\midrule",
            *(f"{' & '.join(cells)} \\\\" for cells in zip(*columns, strict=True)),
            "\\bottomrule",
            "\\end{tabular}\n",
        ]
    )


def _numbers(summary: Summary) -> dict[str, float]:
    """Of one run, by the names that tables give them."""
    joined = summary.newcomers
    return {
        summary.result.metric: summary.result.value,
        "std_over_clients": summary.result.std,
        "worst_decile": summary.result.worst_decile,
        "newcomers": math.nan if joined is None else joined.value,
        "rounds": summary.rounds,
        "megabytes_up_per_client": summary.bytes_up / summary.clients / 1e6,
        "megabytes_down_per_client": summary.bytes_down / summary.clients / 1e6,
        "seconds": summary.seconds,
    }


def _line(label: str, summaries: Sequence[Summary]) -> dict[str, Any]:
    line: dict[str, Any] = {"method": label, "seeds": len(summaries)}
    for summary in summaries:
        line[f"{summary.result.metric}_seed_{summary.seed}"] = summary.result.value
    for key in dict.fromkeys(key for summary in summaries for key in _numbers(summary)):
        number = over_seeds(summaries, key)
        line[key] = None if number is None else number.mean
        if number is not None and key not in WITHOUT_DEVIATION:
            line[f"{key}{DEVIATION}"] = number.std
    return line


def over_seeds(summaries: Sequence[Summary], key: str) -> OverSeeds | None:
    """One of a run's numbers, by its name in the tables, over a method's seeds."""
    return OverSeeds.of(_numbers(summary).get(key) for summary in summaries)


def _bold_best(numbers: Sequence[OverSeeds | None], of: Metric) -> list[str]:
    """Cells of one column, shares in percent, the best in bold; so are all that read the same."""
    means = ["" if number is None else f"{of.factor * number.mean:.2f}" for number in numbers]
    several = len(list(filter(None, means))) > 1
    best = max(filter(None, means), key=lambda mean: of.gain(float(mean))) if several else None
    cells = []
    for number, mean in zip(numbers, means, strict=True):
        shown = f"\\textbf{{{mean}}}" if mean == best else mean
        deviation = None if number is None else number.std
        cells.append(shown if deviation is None else f"{shown} $\\pm$ {of.factor * deviation:.2f}")
    return [cell or "--" for cell in cells]


def _capital(name: str) -> str:
    return words(name)[0].upper() + words(name)[1:]


def _plain(number: OverSeeds | None, digits: int) -> str:
    return "--" if number is None else f"{number.mean:.{digits}f}"


def _latex(text: str) -> str:
    r"""Text as LaTeX reads it.

    >>> print(_latex("fedprox(mu_=0.1) & x"))
    fedprox(mu\_=0.1) \& x
    """
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)
