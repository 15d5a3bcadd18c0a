"""A study on a terminal: its progress, and one number of each diagnostic and layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedloom.record import Finding

Number = float | None


class Steps:
    """A bar with what a study is at, drawn when it begins."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=quiet)
        self._task = self._bar.add_task("", total=None)

    def begin(self, what: str, done: int, total: int) -> None:
        """The next step, as `study` tells it."""
        self._bar.start()
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            (task,) = self._bar.tasks
            self._bar.update(self._task, description="done", completed=task.total)
        self._bar.stop()


@dataclass
class Row:
    """One line of the table."""

    of: str
    layer: str | None
    data: str
    numbers: dict[str, Number] = field(default_factory=dict)
    reference: str = ""
    skipped: str | None = None


def findings_table(findings: Sequence[Finding]) -> Table:
    """Means over clients before and after local training, and what to hold them against."""
    rounds = sorted({found.round for found in findings})
    table = Table(title=f"Diagnostics after round {', '.join(map(str, rounds))}")
    table.add_column("number", overflow="fold")
    table.add_column("layer", overflow="fold")
    table.add_column("rows of")
    for head in ("before", "after"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("reference", overflow="fold")
    for row in _rows(findings):
        shown = [_shown(row.numbers.get(when)) for when in ("before", "after")]
        note = row.skipped or row.reference
        table.add_row(row.of, Text(row.layer or ""), row.data, *shown, Text(note))
    return table


def _rows(findings: Iterable[Finding]) -> list[Row]:
    """Before and after of one number side by side, also where they are two findings."""
    rows: dict[tuple[str, str | None, str], Row] = {}
    for found in findings:
        if found.skipped:
            row = Row(found.name, found.layer, found.data, skipped=found.skipped)
            rows[found.name, found.layer, found.data] = row
            continue
        for row in _READERS[found.name](found):
            kept = rows.setdefault((row.of, row.layer, row.data), row)
            kept.numbers |= row.numbers
    return list(rows.values())


def _shown(value: Number) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _mean_of(metric: str, label: str, null: str = "") -> Callable[[Finding], list[Row]]:
    """A column of a table with clients; `null` is the column it is held against."""

    def read(found: Finding) -> list[Row]:
        means = found.result["mean"]
        reference = f"noise {_shown(means['after'].get(null))}" if null else ""
        numbers = {when: means[when][metric] for when in ("before", "after")}
        return [Row(label, found.layer, found.data, numbers, reference)]

    return read


def _mdl(found: Finding) -> list[Row]:
    """On clients' own rows, of which they have unequally many, per label."""
    result = found.result
    if found.data != "local-test":
        (row,) = _mean_of("bits", "MDL, bits")(found)
        row.reference = f"uniform code: {_shown(_mean(result['uniform_bits']))}"
        return [row]
    numbers = {when: _per_label(result[when]["bits"], result["n"]) for when in ("before", "after")}
    reference = f"labels alone: {_shown(_per_label(result['prior_bits'], result['n']))}"
    return [Row("MDL, bits per label", found.layer, found.data, numbers, reference)]


def _per_label(bits: Sequence[Number], n: Sequence[int]) -> Number:
    return _mean(None if b is None else b / count for b, count in zip(bits, n, strict=True))


def _mean(values: Iterable[Number]) -> Number:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _cka(found: Finding) -> list[Row]:
    numbers: dict[str, Number] = {found.snapshot: found.result["mean"]}
    null = _shown(found.result["null"])
    return [Row("CKA between clients", found.layer, found.data, numbers, f"unrelated: {null}")]


def _drift(found: Finding) -> list[Row]:
    means = found.result["mean"]
    numbers = {"before": 0.0, "after": means["all"]["cosine"]}
    unseen = f"on unseen classes: {_shown(means['unseen']['cosine'])}"
    return [Row("cosine drift", found.layer, found.data, numbers, unseen)]


def _overlap(found: Finding) -> list[Row]:
    (row,) = _mean_of("eta2", "seen apart from unseen, eta2")(found)
    row.reference = f"noise {_shown(_mean(found.result['null_eta2']))}"
    return [row]


def _classifier_bias(found: Finding) -> list[Row]:
    least = found.settings["seen_at_least"]
    label = "unseen called seen" if least == 1 else f"the same, seen from {least} rows"
    (row,) = _mean_of("seen_mass", label)(found)
    blind = [b for b, n in zip(found.result["blind"], found.result["n_unseen"], strict=True) if n]
    row.reference = f"uniform guess: {_shown(_mean(blind))}"
    return [row]


def _global_accuracy(found: Finding) -> list[Row]:
    (row,) = _mean_of("accuracy", "accuracy on all classes")(found)
    whole = found.result["aggregated"]
    known = f"aggregated model: {_shown(whole['accuracy'])}"
    row.reference = f"no aggregated model: {whole['why']}" if whole["why"] else known
    return [row]


def _calibration(found: Finding) -> list[Row]:
    rows = []
    for way, score in found.result["ways"].items():
        final = found.snapshot == "final"
        label = f"ECE, {way.replace('_', ' ')}{', final model' if final else ''}"
        numbers: dict[str, Number] = {"after" if final else found.snapshot: score["ece"]}
        rows.append(Row(label, None, found.data, numbers, f"noise {_shown(score['noise'])}"))
    return rows


def _tsne(found: Finding) -> list[Row]:
    purity = found.result["purity"]["client_within_class"]
    numbers = {when: purity[when] for when in ("before", "after")}
    label = "own client's neighbours"
    return [Row(label, found.layer, found.data, numbers, f"mixed: {_shown(purity['null'])}")]


def _ellipses(found: Finding) -> list[Row]:
    share = f"the plane shows {_shown(100 * found.result['explained'])} % of the variance"
    return [Row("classes as ellipses", found.layer, found.data, {}, share)]


_READERS: dict[str, Callable[[Finding], list[Row]]] = {
    "mdl": _mdl,
    "cka": _cka,
    "separation": _mean_of("value", "separation, R2", "null"),
    "fisher": _mean_of("largest", "Fisher ratio, largest", "null_largest"),
    "drift": _drift,
    "overlap": _overlap,
    "classifier_bias": _classifier_bias,
    "global_accuracy": _global_accuracy,
    "calibration": _calibration,
    "tsne": _tsne,
    "ellipses": _ellipses,
}
