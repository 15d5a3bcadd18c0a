"""What `fedloom check` and `fedloom advise` print."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloom.advice.advice import Advice
from fedloom.advice.check import Checked
from fedloom.advice.reading import named
from fedloom.advice.shortlist import LOCAL
from fedloom.advice.skew import Skew
from fedloom.core.metrics import Metric, metric

MOST_CLIENTS = 30
"""Lines of the table; --json has all."""


def check_page(checked: Checked) -> RenderableType:
    """One page: what the data is, who holds what, what is wrong, what one should know."""
    parts: list[RenderableType] = [_facts(checked)]
    if checked.clients:
        parts.append(_clients(checked))
    return Group(*parts, *_sentences(checked))


def _facts(checked: Checked) -> Table:
    table = Table(title=Text(checked.data), show_header=False)
    for name, text in _lines(checked):
        table.add_row(name, Text(text, overflow="fold"))
    return table


def _lines(checked: Checked) -> Iterator[tuple[str, str]]:
    if not checked.rows:
        yield "rows", "none can be read"
        return
    shape = "x".join(map(str, checked.shape))
    yield "rows", f"{checked.rows:,} ({checked.kind}, {shape} numbers each)"
    if checked.reading.left_out:
        yield "left out below", f"{checked.reading.left_out:,} rows with a fault"
    if checked.targets == "numbers":
        yield "targets", f"numbers: {named(checked.class_names)}"
    else:
        yield checked.targets, f"{len(checked.class_names)}: {named(checked.class_names)}"
    if not checked.clients:
        return
    yield "clients", f"{len(checked.clients)} ({checked.partition})"
    train, val, test = (
        sum(getattr(one, split) for one in checked.clients) for split in ("train", "val", "test")
    )
    yield "split", f"{checked.split}: {train:,} training, {val:,} validation, {test:,} test rows"
    sizes = {one.name: one.train + one.val + one.test for one in checked.clients}
    smallest, largest = min(sizes, key=lambda n: sizes[n]), max(sizes, key=lambda n: sizes[n])
    yield (
        "sizes",
        f"smallest {sizes[smallest]:,} rows ({smallest}), median"
        f" {median(sizes.values()):,.0f}, largest {sizes[largest]:,} ({largest})",
    )
    yield "label skew", _skew(checked.label_skew, "classes" if checked.targets == "classes" else "")
    yield "feature skew", _skew(checked.feature_skew, "")
    twice = checked.duplicates
    if twice is not None:
        yield (
            "duplicates",
            f"rows within a client: {twice.within}, inputs at several clients: {twice.across}",
        )
        yield "leaks", f"test rows that are trained on: {twice.leaks_within + twice.leaks_across}"


def _skew(skew: Skew | None, of: str) -> str:
    if skew is None:
        return "-"
    if not skew.clear:
        return f"none beyond chance ({skew.value:.2f})"
    scale = (
        "0: classes as if dealt at random, 1: nothing in common"
        if of
        else "share of the variance that is between clients"
    )
    return f"{skew.words} ({skew.value:.2f}; {scale})"


def _clients(checked: Checked) -> Table:
    table = Table()
    heads = ["client", "train", "val", "test"]
    has_classes = checked.targets != "numbers"
    for head in [*heads, *([checked.targets, "only in test"] if has_classes else [])]:
        left = head in ("client", "only in test")
        table.add_column(head, justify="left" if left else "right", overflow="fold")
    for one in checked.clients[:MOST_CLIENTS]:
        cells = [one.name, str(one.train), str(one.val), str(one.test)]
        if has_classes:
            cells += [str(one.classes), named(one.only_in_test, 3)]
        table.add_row(*map(Text, cells))
    if len(checked.clients) > MOST_CLIENTS:
        table.caption = f"and {len(checked.clients) - MOST_CLIENTS} more; --json shows all"
    return table


def _sentences(checked: Checked) -> Iterator[Text]:
    for sentence in checked.problems:
        yield Text(f"problem: {sentence}", style="red")
    for sentence in checked.remarks:
        yield Text(f"remark: {sentence}")
    if checked.problems:
        yield Text("A training would fail on the problems above; mend them first.", style="bold")
    else:
        yield Text("Nothing that a training would fail on.", style="bold")


# ------------------------------------------------------------------ advice


def advice_page(advice: Advice) -> RenderableType:
    """The evidence, the recommendation, and who would lose."""
    parts: list[RenderableType] = [_evidence(advice), Text(f"Advice: {advice.sentence}.")]
    parts += [Text(sentence) for sentence in _on_losers(advice)]
    return Group(*parts)


def _evidence(advice: Advice) -> Table:
    of = metric(advice.metric)
    evidence = advice.evidence
    tested = {one.method: one for one in advice.tested}
    table = Table(
        title=f"{of.head} over {evidence.seeds} seeds, simplest method first",
        caption=f"behind: the best less this one on validation rows, with 95 % interval;"
        f" p by {evidence.test}",
    )
    table.add_column("method", overflow="fold")
    table.add_column("kind", overflow="fold")
    for head in ("validation", "behind", "p", "test"):
        table.add_column(head, justify="right")
    for one in evidence.standings:
        on_test = tested[one.method].mean if one.method in tested else None
        best = one.method == evidence.best
        interval = f" ({_number(of, one.low)} to {_number(of, one.high)})"
        table.add_row(
            Text(one.method),
            Text(advice.listed.kind(one.method)),
            _number(of, one.mean),
            "best" if best else _number(of, one.behind) + interval,
            "" if best else f"{one.p:.2g}",
            "-" if on_test is None else on_test.shown(of).removesuffix(of.unit),
            style="bold" if one.method == evidence.advised else "",
        )
    return table


def _number(of: Metric, value: float) -> str:
    return of.shown(value).removesuffix(of.unit)


def _on_losers(advice: Advice) -> Iterator[str]:
    of = metric(advice.metric)
    if advice.method == LOCAL:
        yield _on_training_alone(advice)
        return
    if not advice.losers:
        yield "No client does better alone on its test rows."
        return
    shown = [
        f"{one.client} ({of.shown(one.alone)} alone, {of.shown(one.together)} together"
        f"{', clearly' if one.clear else ''})"
        for one in advice.losers
    ]
    clients = len(advice.checked.clients)
    yield (
        f"Better off alone on their test rows, {len(shown)} of {clients} clients: {named(shown)}."
    )


def _on_training_alone(advice: Advice) -> str:
    if advice.evidence.best == LOCAL:
        return "Nobody has to take part: nothing that was tried is better than training alone."
    return (
        "Nobody has to take part, as far as this shows: nothing that was tried is clearly better"
        f" than training alone. More than {advice.evidence.seeds} seeds (--seeds) may show more."
    )
