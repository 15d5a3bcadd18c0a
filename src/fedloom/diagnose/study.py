"""All diagnostics of a run as it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from fedloom.core.threads import one_thread
from fedloom.diagnose.layers import WIDEST
from fedloom.diagnose.measure import Measure, Options, Outcome, Skipped
from fedloom.diagnose.registry import chosen, diagnostics
from fedloom.diagnose.snapshots import Snapshots
from fedloom.errors import FedloomError
from fedloom.files import jsonable
from fedloom.record import Finding, dump

Progress = Callable[[str, int, int], None]
"""Called with what begins (a client looked at, a diagnostic concluded), the steps done, and the
number of steps."""


def study(
    snapshots: Snapshots,
    only: str | Iterable[str] | None = None,
    *,
    options: Options | None = None,
    progress: Progress = lambda what, done, total: None,
    seconds: dict[str, float] | None = None,
) -> list[Finding]:
    """The named diagnostics, by default all, in their order.

    What cannot be measured is a finding with the reason. `seconds` is filled with what each
    diagnostic took; the first that needs a model pays for its training.

    >>> from fedloom.launch.start import run
    >>> snapshots = Snapshots.of(run("fedavg", rounds=1, clients=3, partition="iid"))
    >>> [(finding.snapshot, finding.layer) for finding in study(snapshots, "cka")][:3]
    [('before', 'body.1'), ('before', 'body'), ('before', 'head')]
    """
    under_way = _Study(snapshots, chosen(only), options or Options(), seconds)
    steps: list[tuple[str, Callable[[], None]]] = [
        (f"client {cid}", partial(under_way.see, cid)) for cid in snapshots.ids
    ]
    steps += [(name, partial(under_way.conclude, name)) for name in under_way.names]
    with one_thread():  # as in the run: the bytes of a sum depend on how many threads share it
        for done, (what, work) in enumerate(steps):
            progress(what, done, len(steps))
            work()
    return under_way.findings


class _Study:
    """Measures under way; one that fails is left out with the reason, and the others go on."""

    def __init__(
        self,
        snapshots: Snapshots,
        names: tuple[str, ...],
        options: Options,
        seconds: dict[str, float] | None,
    ) -> None:
        self.snapshots, self.names = snapshots, names
        self.findings: list[Finding] = []
        self._measures: dict[str, Measure[Any]] = {
            name: diagnostics()[name].measure(snapshots, options) for name in names
        }
        self._failed: dict[str, Skipped] = {}
        self._entries: dict[str, set[int]] = {}
        self._seconds = {} if seconds is None else seconds

    def see(self, cid: int) -> None:
        """Show a client to every measure."""
        client = self.snapshots.client(cid)
        for name in self.names:
            if name not in self._failed:
                self._attempt(name, partial(self._measures[name].see, client))
        for layer, entries in client.before.entries.items():
            self._entries.setdefault(layer, set()).add(entries)

    def conclude(self, name: str) -> None:
        """Turn what a measure saw into findings."""
        outcomes: list[Outcome[Any]] = []
        if name not in self._failed:
            self._attempt(name, lambda: outcomes.extend(self._measures.pop(name).outcomes()))
        if name in self._failed:
            outcomes = [Outcome("both", None, "bal", self._failed[name])]
        elif not outcomes:
            reason = Skipped("no client that was looked at has the rows it needs")
            outcomes = [Outcome("both", None, "bal", reason)]
        self.findings += [self._finding(name, outcome) for outcome in outcomes]

    def _attempt(self, name: str, work: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        try:
            work()
        except (FedloomError, torch.linalg.LinAlgError) as e:  # type: ignore[attr-defined]
            self._failed[name] = Skipped(str(e).splitlines()[0])
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun

    def _finding(self, name: str, outcome: Outcome[Any]) -> Finding:
        if isinstance(outcome.result, Skipped):
            result: dict[str, Any] = {"skipped": outcome.result.reason}
        else:
            result = jsonable(dump(outcome.result))
        return Finding(
            round=self.snapshots.round,
            name=name,
            snapshot=outcome.snapshot,
            layer=outcome.layer,
            data=outcome.data,
            settings=jsonable({**self._settings(outcome), **outcome.settings}),
            result=result,
        )

    def _settings(self, outcome: Outcome[Any]) -> dict[str, Any]:
        """What every diagnostic of a study has in common: clients, rows, and the layer's width."""
        samples = self.snapshots.samples
        same_rows = outcome.data == "bal" and not isinstance(outcome.result, Skipped)
        settings = {
            "rows": samples.rows,
            "seed": samples.seed,
            "clients": self.snapshots.ids,
            "clients_in_run": self.snapshots.program.clients,
            "rows_sha256": samples.balanced.sha256 if same_rows else None,
        }
        if outcome.layer is not None:
            entries = sorted(self._entries[outcome.layer])
            settings["width"] = _one_or_all([min(size, WIDEST) for size in entries])
            settings["entries"] = _one_or_all(entries)
        return settings


def _one_or_all(sizes: list[int]) -> int | list[int]:
    """One size, or all where clients' networks differ."""
    return sizes[0] if len(sizes) == 1 else sizes
