"""Progress on a terminal, and the tables a run or a comparison ends with."""

from __future__ import annotations

from typing import Self, get_args

from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedloom.core.stopwatch import Activity
from fedloom.data import FederatedData, picture
from fedloom.launch.compare import Comparison
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account
from fedloom.runs.scores import Record
from fedloom.runs.watcher import Watcher


class Bar:
    """A bar with the time left, on standard error, for one run or for many one after another."""

    def __init__(self, console: Console, runs: int = 1) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._all: TaskID | None = None
        if runs > 1:
            self._all = self._progress.add_task("all runs", total=float(runs), status="")

    def __enter__(self) -> Self:
        return self  # the first run that begins starts it: an error before shows no bar

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def watcher(self, label: str, done: int = 0) -> BarWatcher:
        """Watches one run on this bar, `done` runs being over."""
        if self._all is not None:
            self._progress.update(self._all, completed=done)
        return BarWatcher(self._progress, label, self._all)


class BarWatcher(Watcher):
    """One run's line on a bar."""

    def __init__(self, progress: Progress, label: str, whole: TaskID | None) -> None:
        self._progress, self._label, self._whole = progress, label, whole
        self._line: TaskID | None = None
        self._share = 0.0

    def begun(self, experiment: Experiment, done: int) -> None:
        self._progress.start()
        total = len(experiment.plans)
        self._share = 1 / total
        self._line = self._progress.add_task(self._label, total=total, completed=done, status="")
        if self._whole is not None:
            self._progress.advance(self._whole, done * self._share)

    def step(self, record: Record) -> None:
        assert self._line is not None
        status = newest_accuracy(record)
        changes = {} if status is None else {"status": f"accuracy {100 * status:.1f} %"}
        self._progress.update(self._line, advance=1, **changes)  # type: ignore[arg-type]
        if self._whole is not None:
            self._progress.advance(self._whole, self._share)

    def ended(self, summary: Record) -> None:
        if self._line is not None and self._whole is not None:
            self._progress.remove_task(self._line)
            # Shares of a run do not add up to exactly one.
            self._progress.update(self._whole, completed=round(self._completed(self._whole)))

    def _completed(self, line: TaskID) -> float:
        return next(t.completed for t in self._progress.tasks if t.id == line)


def newest_accuracy(record: Record) -> float | None:
    """The mean accuracy a round was scored with, at the first moment that was."""
    for at, stats in record["scores"].items():
        if at.endswith(("/test", "/val")):
            return float(stats["mean"])
    return None


def summary_table(summary: Record) -> Table:
    """One run, readable."""
    table = Table(title=Text(summary["method"]), show_header=False)
    spread = f"± {100 * summary['accuracy_std']:.2f} over clients"
    table.add_row("accuracy", f"{100 * summary['accuracy']:.2f} % {spread}")
    table.add_row("worst 10 % of clients", f"{100 * summary['worst_decile']:.2f} %")
    table.add_row("protocol", summary["protocol"])
    table.add_row("rounds, clients", f"{summary['rounds']}, {summary['clients']}")
    table.add_row(
        "sent, received by clients", f"{_mb(summary['bytes_up'])}, {_mb(summary['bytes_down'])}"
    )
    table.add_row("seconds", f"{summary['seconds']:.1f}")
    table.add_row("state", summary["state_sha256"][:16])
    if summary["run"]:
        table.add_row("run", Text(summary["run"], overflow="fold"))
    return table


def profile_table(summary: Record) -> Table:
    """Where the time of a run went, in this process and in the engine's others."""
    places = {k: v for k, v in summary["activities"].items() if v}
    whole = sum(sum(seconds.values()) for seconds in places.values()) or 1.0
    table = Table(title=f"Where the time went ({summary['seconds']:.1f} s by the clock)")
    table.add_column("activity")
    for place in (*places, "share"):
        table.add_column(place, justify="right")
    for activity in get_args(Activity):
        spent = [seconds.get(activity, 0.0) for seconds in places.values()]
        shown = [f"{s:.2f} s" for s in spent]
        table.add_row(activity, *shown, f"{100 * sum(spent) / whole:.1f} %")
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Methods side by side; the best mean in bold."""
    seeds = len(comparison.rows[0].summaries)
    table = Table(title=f"Accuracy over {seeds} seed{'s' if seeds > 1 else ''}")
    table.add_column("method", overflow="fold")
    for head in ("accuracy %", "worst tenth\nof clients %", "MB sent\nby a client", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    best = max(row.over_seeds("accuracy")[0] for row in comparison.rows)
    for row in comparison.rows:
        mean, deviation = row.over_seeds("accuracy")
        worst, worst_deviation = row.over_seeds("worst_decile")
        table.add_row(
            Text(row.label),
            f"{100 * mean:.2f} ± {100 * deviation:.2f}",
            f"{100 * worst:.2f} ± {100 * worst_deviation:.2f}",
            f"{row.megabytes:.2f}",
            f"{row.over_seeds('seconds')[0]:.1f}",
            style="bold" if mean == best else "",
        )
    return table


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
        for name, shape, kind, size in shared.tensors:
            table.add_row(Text(name), "x".join(map(str, shape)) or "a number", kind, f"{size:,}")
        table.add_section()
        table.add_row("beside them", Text(", ".join(shared.numbers), overflow="fold"), "", "")
        table.add_row("in one message", "", "", f"{shared.nbytes:,}")
        tables.append(table)
    scores = [f"{at} of {len(ids)} clients" for at, ids in sorted(account.scored().items())]
    clients = Table(title="By client", caption=f"scores reported: {'; '.join(scores) or 'none'}")
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


def _span(steps: list[Record]) -> str:
    kinds = {s["kind"] for s in steps}
    if kinds == {"train"}:
        first, last = steps[0]["round"], steps[-1]["round"]
        return f"round {first}" if first == last else f"rounds {first} to {last}"
    return ", ".join(sorted({f"{s['kind']} round {s['owner']}" for s in steps}))


def partition_table(data: FederatedData, console: Console) -> Table:
    """Clients by classes, or, where the terminal is too narrow for that, what they come to."""
    whole = picture.table(data)
    unbounded = console.options.update(max_width=100_000)
    if Measurement.get(console, unbounded, whole).minimum <= console.width:
        return whole
    short = Table(title=whole.title, caption="--out saves the plot of all clients and classes")
    for head in ("client", "samples", "classes", "most frequent"):
        short.add_column(head, justify="left" if head == "most frequent" else "right")
    names = data.source.class_names
    for cid, row in enumerate(data.counts()):
        most = sorted((c for c in range(len(row)) if row[c]), key=lambda c: (-row[c], c))[:3]
        shown = ", ".join(f"{names[c]} {row[c]}" for c in most)
        short.add_row(str(cid), str(row.sum()), str(int((row > 0).sum())), Text(shown))
    return short


def _mb(count: int) -> str:
    return f"{count / 1e6:.2f} MB"
