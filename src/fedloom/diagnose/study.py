"""All diagnostics of a run as it stands, in plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from fedloom.core.threads import one_thread
from fedloom.diagnose.finding import chosen
from fedloom.diagnose.layers import WIDEST
from fedloom.diagnose.measures import MEASURES, Measure, Options
from fedloom.diagnose.measures.base import Outcome
from fedloom.diagnose.snapshots import Snapshots
from fedloom.errors import FedloomError
from fedloom.files import jsonable
from fedloom.record import Finding

Progress = Callable[[str, int, int], None]
"""Told what begins (a client looked at, a diagnostic concluded), the steps done, and all steps."""


def study(
    snapshots: Snapshots,
    only: str | Iterable[str] | None = None,
    *,
    options: Options | None = None,
    progress: Progress = lambda what, done, total: None,
    seconds: dict[str, float] | None = None,
) -> list[Finding]:
    """The named diagnostics, by default all, in the order of `finding.NAMES`.

    What cannot be measured is a finding that says why. `seconds` is filled with what each
    diagnostic took; the first to ask for a model pays for its training.

    >>> from fedloom.launch.start import run
    >>> of = Snapshots.of(run("fedavg", rounds=1, clients=3, partition="iid"))
    >>> [(found.snapshot, found.layer) for found in study(of, "cka")][:3]
    [('before', 'body.1'), ('before', 'body'), ('before', 'head')]
    """
    made = _Study(snapshots, chosen(only), options or Options(), seconds)
    steps: list[tuple[str, Callable[[], None]]] = [
        (f"client {cid}", partial(made.see, cid)) for cid in snapshots.ids
    ]
    steps += [(name, partial(made.conclude, name)) for name in made.names]
    with one_thread():  # as in the run: the bytes of a sum depend on how many threads share it
        for done, (what, work) in enumerate(steps):
            progress(what, done, len(steps))
            work()
    return made.findings


class _Study:
    """Measures under way; one that breaks down says why and leaves the others alone."""

    def __init__(
        self,
        snapshots: Snapshots,
        names: tuple[str, ...],
        options: Options,
        seconds: dict[str, float] | None,
    ) -> None:
        self.snapshots, self.names = snapshots, names
        self.findings: list[Finding] = []
        self._measures: dict[str, Measure] = {
            name: MEASURES[name](snapshots, options) for name in names
        }
        self._broken: dict[str, str] = {}
        self._entries: dict[str, set[int]] = {}
        self._seconds = {} if seconds is None else seconds

    def see(self, cid: int) -> None:
        client = self.snapshots.client(cid)
        for name in self.names:
            if name not in self._broken:
                self._attempt(name, partial(self._measures[name].see, client))
        for layer, entries in client.before.entries.items():
            self._entries.setdefault(layer, set()).add(entries)

    def conclude(self, name: str) -> None:
        found: list[Outcome] = []
        if name not in self._broken:
            self._attempt(name, lambda: found.extend(self._measures.pop(name).outcomes()))
        if name in self._broken:
            found = [Outcome("both", None, "bal", {"skipped": self._broken[name]})]
        elif not found:
            why = "no client that was looked at has the rows it needs"
            found = [Outcome("both", None, "bal", {"skipped": why})]
        self.findings += [self._finding(name, outcome) for outcome in found]

    def _attempt(self, name: str, work: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        try:
            work()
        except (FedloomError, torch.linalg.LinAlgError) as e:  # type: ignore[attr-defined]
            self._broken[name] = str(e).splitlines()[0]
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun

    def _finding(self, name: str, outcome: Outcome) -> Finding:
        samples = self.snapshots.samples
        same_rows = outcome.data == "bal" and "skipped" not in outcome.result
        settings = {
            "rows": samples.rows,
            "seed": samples.seed,
            "clients": self.snapshots.ids,
            "clients_in_run": self.snapshots.program.clients,
            "rows_sha256": samples.balanced.sha256 if same_rows else None,
        }
        if outcome.layer is not None:
            entries = sorted(self._entries[outcome.layer])
            settings["width"] = _plain([min(size, WIDEST) for size in entries])
            settings["entries"] = _plain(entries)
        return Finding(
            round=self.snapshots.round,
            name=name,
            snapshot=outcome.snapshot,
            layer=outcome.layer,
            data=outcome.data,
            settings=jsonable({**settings, **outcome.settings}),
            result=jsonable(outcome.result),
        )


def _plain(sizes: list[int]) -> int | list[int]:
    """One size, or all where clients' networks differ."""
    return sizes[0] if len(sizes) == 1 else sizes
