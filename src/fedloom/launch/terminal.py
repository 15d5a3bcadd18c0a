"""The tables that commands end with on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedloom.core.metrics import Metric, metric
from fedloom.core.stopwatch import Activity
from fedloom.data import FederatedData, picture
from fedloom.launch.tables import AgainstAlone, OverSeeds, over_seeds, training_alone
from fedloom.record import LedgerStep, Summary
from fedloom.runs.ledger import Account
from fedloom.runs.result import Result, summary_rows

if TYPE_CHECKING:
    from fedloom.launch.compare import Comparison
    from fedloom.runs.adapted import Adapted


def summary_table(result: Result) -> Table:
    """One run, readable."""
    table = Table(title=Text(result.summary.label), show_header=False)
    for name, text in summary_rows(result.summary, result.records):
        table.add_row(name, Text(text, overflow="fold"))
    return table


def adapted_table(adapted: Adapted) -> Table:
    """A newcomer's model beside what it began with and training alone."""
    card, of = adapted.model.card, metric(adapted.metric)
    table = Table(title=Text(f"{card.name} joins: {card.training_rows} training rows"))
    table.add_column("model")
    for split, rows in card.rows_scored.items():
        table.add_column(f"{of.title}\n{rows} {split} rows", justify="right")
    for name, scores in (
        ("as received", adapted.received),
        (f"joined, {adapted.epochs} epochs", adapted.adapted),
        (f"alone, {adapted.epochs} epochs", adapted.alone),
    ):
        values = (scores[split][adapted.metric] for split in card.rows_scored)
        table.add_row(name, *("-" if v is None else f"{of.factor * v:.2f}" for v in values))
    for gain in adapted.gains:
        low, high = (f"{of.factor * end:+.2f}" for end in gain.interval)
        shown = f"{of.factor * gain.value:+.2f} ({low} to {high})"
        over = "over alone" if gain.over == "alone" else "over received"
        table.add_row(f"gain {over}, 95 %", shown)
    return table


def profile_table(summary: Summary) -> Table:
    """Where the time of a run went, in this process and in the engine's others."""
    places = {k: v for k, v in summary.activities.items() if v}
    whole = sum(sum(seconds.values()) for seconds in places.values()) or 1.0
    table = Table(title=f"Where the time went ({summary.seconds:.1f} s by the clock)")
    table.add_column("activity")
    for place in (*places, "share"):
        table.add_column(Text(place), justify="right")
    for activity in get_args(Activity):
        spent = [seconds.get(activity, 0.0) for seconds in places.values()]
        shown = [f"{s:.2f} s" for s in spent]
        table.add_row(Text(activity), *shown, f"{100 * sum(spent) / whole:.1f} %")
    return table


class Column(NamedTuple):
    """A number of a comparison."""

    key: str
    head: str
    shown: str
    """`result`: with the deviation over seeds; `mean`: without; else the format of a mean."""


def _columns(of: Metric) -> tuple[Column, ...]:
    return (
        Column(of.name, of.title, "result"),
        Column("worst_decile", f"worst\ntenth{of.unit}", "mean"),
        Column("megabytes_up_per_client", "MB\nsent", ".2f"),
        Column("seconds", "seconds", ".1f"),
        Column("newcomers", f"newcomers{of.unit}", "result"),
    )


METHOD_WIDTH = 22
"""Leaves a table with all its columns in 80 characters."""


def comparison_table(comparison: Comparison) -> Table:
    """Methods side by side, the best mean in bold; with `local` among them also how many clients
    gain and lose against training alone."""
    rows = comparison.rows
    of, seeds = rows[0].metric, len(rows[0].summaries)
    head = of.head.removesuffix(of.unit)
    table = Table(title=f"{head} over {seeds} seed{'s' if seeds > 1 else ''}")
    table.add_column("method", overflow="fold", min_width=METHOD_WIDTH)
    alone = training_alone(comparison.methods)
    newcomers = any(s.newcomers for row in rows for s in row.summaries)
    columns = [column for column in _columns(of) if column.key != "newcomers" or newcomers]
    against = ["gain/\nlose %"] if alone else []
    for head in [*(column.head for column in columns), *against]:
        table.add_column(head, justify="right", no_wrap=True)
    if alone:
        table.caption = "gain/lose: clients that do better and worse than by training alone"
    best = max((row.accuracy for row in rows), key=of.gain)
    for row in rows:
        cells = [_cell(over_seeds(row.summaries, c.key), c.shown, of) for c in columns]
        if alone:
            cells.append(_gain_and_loss(row.summaries, alone))
        table.add_row(Text(row.label), *cells, style="bold" if row.accuracy == best else "")
    return table


def _gain_and_loss(method: Sequence[Summary], alone: Sequence[Summary]) -> str:
    """`62/15`: 62 % of the clients are better off than alone and 15 % worse."""
    shares = None if method is alone else AgainstAlone.of(method, alone)
    return "-" if shares is None else f"{100 * shares.better:.0f}/{100 * shares.worse:.0f}"


def _cell(number: OverSeeds | None, shown: str, of: Metric) -> str:
    if number is None:
        return "-"
    if shown == "mean":
        return f"{of.factor * number.mean:.{1 if of.share else 2}f}"
    if shown == "result":
        return number.shown(of).removesuffix(of.unit)
    return f"{number.mean:{shown}}"


def ledger_tables(account: Account) -> list[Table]:
    """What left the clients: every set of things that was ever shared, then client by client."""
    tables = []
    for number, shared in account.sets.items():
        ids, steps = account.uses(number)
        if not ids:
            continue  # of a round that did not count
        rounds = f"{len(steps)} time{'s' if len(steps) > 1 else ''}, {_span(steps)}"
        table = Table(title=Text(f"Shared by {_who(ids, len(account.clients()))}: {rounds}"))
        for head in ("tensor", "shape", "type", "bytes"):
            table.add_column(head, justify="right" if head == "bytes" else "left")
        for tensor in shared.tensors:
            shape = "x".join(map(str, tensor.shape)) or "a number"
            table.add_row(Text(tensor.name), shape, Text(tensor.dtype), f"{tensor.nbytes:,}")
        table.add_section()
        table.add_row("beside them", Text(", ".join(shared.numbers), overflow="fold"), "", "")
        table.add_row("in one message", "", "", f"{shared.nbytes:,}")
        tables.append(table)
    scores = [f"{at} of {len(ids)} clients" for at, ids in sorted(account.scored().items())]
    reported = Text(f"scores reported: {'; '.join(scores) or 'none'}")
    clients = Table(title="By client", caption=reported)
    for head in ("client", "messages", "sent"):
        clients.add_column(head, justify="right")
    for cid, (messages, sent) in account.clients().items():
        clients.add_row(str(cid), str(messages), _mb(sent))
    return [*tables, clients]


def _who(ids: set[int], everybody: int) -> str:
    if len(ids) == everybody:
        return f"all {everybody} clients" if everybody > 1 else "the one client"
    some = ", ".join(map(str, sorted(ids)[:8]))
    return f"client{'s' if len(ids) > 1 else ''} {some}{' ...' if len(ids) > 8 else ''}"


def _span(steps: list[LedgerStep]) -> str:
    kinds = {s.kind for s in steps}
    if kinds == {"train"}:
        first, last = steps[0].round, steps[-1].round
        return f"round {first}" if first == last else f"rounds {first} to {last}"
    return ", ".join(sorted({f"{s.kind} round {s.owner}" for s in steps}))


def partition_table(data: FederatedData, console: Console) -> Table:
    """Clients by classes, or, where the terminal is too narrow for that, what they come to."""
    whole = picture.table(data)
    unbounded = console.options.update(max_width=100_000)
    if Measurement.get(console, unbounded, whole).minimum <= console.width:
        return whole
    short = Table(title=whole.title, caption="--out saves the plot of all clients and classes")
    for head in ("client", "samples", "classes", "most frequent"):
        short.add_column(head, justify="left" if head == "most frequent" else "right")
    names = data.counted
    for cid, row in enumerate(data.counts()):
        most = sorted((c for c in range(len(row)) if row[c]), key=lambda c: (-row[c], c))[:3]
        shown = ", ".join(f"{names[c]} {row[c]}" for c in most)
        client = f"{cid} {data.client_names[cid]}" if data.partition.names else str(cid)
        short.add_row(Text(client), str(row.sum()), str(int((row > 0).sum())), Text(shown))
    return short


def _mb(count: int) -> str:
    return f"{count / 1e6:.2f} MB"
