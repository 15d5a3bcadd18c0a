"""The loop over rounds: ask the engine, merge, evaluate, write down, checkpoint."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedloom.core.digest import state_sha256
from fedloom.core.message import Plan
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.stopwatch import Seconds, timed
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, nbytes
from fedloom.engines import Absent, Engine, Job
from fedloom.errors import TooFewAnswers
from fedloom.files import write_json
from fedloom.methods import describe
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.evaluation import Evaluator, Scores
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import Journal
from fedloom.runs.ledger import Ledger
from fedloom.runs.scores import Record, result, round_scores, total
from fedloom.runs.store import ClientStates
from fedloom.runs.watcher import Watcher

if TYPE_CHECKING:
    from fedloom.diagnose.recorder import Recorder

TRIES = 3
"""How often a round is asked for when too few clients answer."""


class Runner:
    """One run of an experiment on an engine, in a folder or (folder None) in memory only."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        folder: RunFolder | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.experiment, self.engine, self.folder = experiment, engine, folder
        self.program, self.watchers = experiment.program, watchers
        self.server: State = initial_server(self.program)
        self.clients = ClientStates(
            int(experiment.config.memory * 2**20), None if folder is None else folder.path
        )
        self.records: list[Record] = []
        self.warnings: list[str] = []
        self.done = 0
        self._evaluator = Evaluator(experiment, engine)
        self._totals = {"bytes_up": 0.0, "bytes_down": 0.0, "seconds": 0.0}
        self._changed: set[int] = set()
        self._saved = -1
        self._whole = True
        self._journal: Journal | None = None
        self._ledger: Ledger | None = None
        self._ledger_bytes = 0
        self._checkpoints: Checkpoints | None = None
        self._recorder = self._make_recorder()

    def run(self) -> Record:
        """Every plan that is left, then the summary."""
        try:
            self._run_plans()
            summary = self.summary()
        except BaseException:
            for watcher in self.watchers:
                watcher.stopped()
            raise
        if self.folder is not None:
            write_json(self.folder.summary, summary)
        for watcher in self.watchers:
            watcher.ended(summary)
        return summary

    def _run_plans(self) -> None:
        with one_thread(), self._writing():
            folder = None if self.folder is None else self.folder.path
            self.engine.open(self.program, self.experiment.data, folder)
            self._activities()  # what was before does not count
            for watcher in self.watchers:
                watcher.begun(self.experiment, self.done)
            if self._recorder is not None:
                self._recorder.start(self.done)
            try:
                self._diagnose()  # of a run that goes on: it may have stopped in the midst of it
                for plan in self.experiment.plans[self.done :]:
                    self._step(plan)
            finally:
                self._checkpoint()  # also after an error or Ctrl-C: nothing done is lost

    def restore(self) -> None:
        """Go back to the newest good checkpoint of the folder, or to the beginning."""
        assert self.folder is not None
        checkpoints = Checkpoints(self.folder.checkpoints)
        if not checkpoints.steps():
            return
        snapshot, self.warnings = checkpoints.load_latest(self.clients)
        self.done, self.server = snapshot.step, snapshot.server
        self._totals = dict(snapshot.totals)
        self._checkpoints, self._saved = checkpoints, snapshot.step
        self._ledger_bytes = snapshot.extra["ledger_bytes"]
        with Journal.open(self.folder.metrics) as journal:
            journal.truncate(snapshot.journal_bytes)
        self.records = Journal.read(self.folder.metrics)

    def summary(self) -> Record:
        """The run in one object."""
        config = self.experiment.config
        totals = {k: int(v) if k.startswith("bytes") else v for k, v in self._totals.items()}
        return {
            "method": describe(self.program.method),
            **result(self.experiment.protocol, self.program.method, self.records),
            "protocol": config.protocol,
            "rounds": config.rounds,
            "clients": self.program.clients,
            "seed": config.seed,
            **totals,
            "activities": total([r["activities"] for r in self.records]),
            "state_sha256": state_sha256(self.server, self.clients),
            "partition_sha256": self.experiment.data.partition.fingerprint,
            "run": None if self.folder is None else str(self.folder.path),
        }

    def _step(self, plan: Plan) -> None:
        """One plan, asked again where too few clients answered for it to count."""
        for _ in range(TRIES - 1):
            with suppress(TooFewAnswers):
                self._try(plan)
                return
        self._try(plan)

    def _try(self, plan: Plan) -> None:
        """Nothing of a plan is kept before all of it is done."""
        begun = time.perf_counter()
        present = list(self.engine.present(self.program.clients))
        cohort = self.program.cohort(plan, self.experiment.config.participation, present)
        r = Round(self.program, plan, self.server, cohort)
        scores, kept = Scores(), self.clients.draft()
        sent, absent = {"bytes_up": 0, "bytes_down": 0}, dict[int, str]()

        def job(cid: int) -> Job:
            down = send(r, cid)
            sent["bytes_down"] += nbytes(down.state)
            return Job(cid, down, self.clients.get(cid))

        inside = self._evaluator.inside(plan)
        for cid, up, own in self.engine.clients(cohort, job, inside):
            if isinstance(up, Absent):
                absent[cid] = up.why
                r.add(cid, None)
                continue
            sent["bytes_up"] += nbytes(up.state)
            scores.read(cid, up.metrics)
            if self._ledger is not None:
                self._ledger.enter(cid, up)
            with timed("aggregation"):
                r.add(cid, up)
            kept[cid] = own
        self._check_enough(r, absent)
        with timed("aggregation"):
            server = merge(r)
        self._evaluator.after(r, present, server, ChainMap(kept, self.clients), scores)
        record = {
            "step": self.done,
            "round": plan.t,
            "kind": plan.kind,
            "owner": plan.owner,
            "cohort": cohort,
            "loss": _mean_loss(r),
            **sent,
            "seconds": time.perf_counter() - begun,
            "activities": self._activities(),
            "scores": round_scores(scores.at),
            **({"absent": absent} if absent else {}),
            **({"notes": r.notes} if r.notes else {}),
        }
        self._commit(record, server, kept)

    def _check_enough(self, r: Round, absent: dict[int, str]) -> None:
        least = self.experiment.config.min_clients
        if len(r.ups) < least:
            if self._ledger is not None:
                self._ledger.give_up(self.done, r.plan)
            reasons = "; ".join(f"client {cid}: {why}" for cid, why in sorted(absent.items()))
            raise TooFewAnswers(
                f"{r.plan}: {len(r.ups)} of {len(r.cohort)} clients answered, fewer than"
                f" min_clients = {least} ({reasons}); nothing of this round counts, see to them"
            )

    def _activities(self) -> dict[str, Seconds]:
        """Seconds by activity since the last call, here and in the engine's other processes."""
        return {"main": timed.drain(), "workers": self.engine.elsewhere.drain()}

    def _commit(self, record: Record, server: State, kept: ClientStates) -> None:
        self._whole = False  # Ctrl-C may come between any two of these lines
        self.server = server
        self.clients.accept(kept)
        self._changed |= kept.keys()
        self.done += 1
        for key in self._totals:
            self._totals[key] += record[key]
        self.records.append(record)
        if self._journal is not None:
            self._journal.append(record)
        if self._ledger is not None:
            self._ledger.end_step(record)
        self._whole = True
        self._diagnose()
        every = 1 if self.engine.keeps_states else self.experiment.config.checkpoint_every
        if self.done % every == 0:
            self._checkpoint()
        for watcher in self.watchers:
            watcher.step(record)

    def _make_recorder(self) -> Recorder | None:
        if self.experiment.config.diagnose is None:
            return None
        from fedloom.diagnose.recorder import Recorder

        return Recorder(self.experiment, None if self.folder is None else self.folder.diagnostics)

    def _diagnose(self) -> None:
        """Measure the round just done, where that is asked for; changes nothing."""
        if self._recorder is not None and self.done > 0:
            with timed("evaluation"):
                self._recorder.record(self.done, self.server, self.clients)

    @property
    def diagnostics(self) -> list[Record]:
        """What was recorded on the way."""
        return [] if self._recorder is None else self._recorder.lines

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        self._checkpoints = self._checkpoints or Checkpoints(self.folder.checkpoints)
        with (
            Journal.open(self.folder.metrics) as self._journal,
            Ledger.open(self.folder.ledger, self._ledger_bytes) as self._ledger,
        ):
            if self.done == 0:
                self._journal.truncate(0)
            yield
        self._journal = self._ledger = None

    def _checkpoint(self) -> None:
        """Save, unless that is done; or a round was torn, and the checkpoint before it counts."""
        if self._checkpoints is None or self._journal is None or self._ledger is None:
            return
        if self._saved == self.done or not self._whole:
            return
        snapshot = Snapshot(
            step=self.done,
            server=self.server,
            clients=self.clients,
            journal_bytes=self._journal.sync(),
            totals=self._totals,
            extra={"ledger_bytes": self._ledger.sync()},
        )
        with timed("saving"):
            self._checkpoints.save(snapshot, self._changed)
        self._saved, self._changed = self.done, set()


def _mean_loss(r: Round) -> float | None:
    """Training loss over the cohort, weighted by samples."""
    losses = [(up.metrics["loss"], up.n) for up in r.ups.values() if "loss" in up.metrics]
    total = sum(n for _, n in losses)
    return sum(loss * n for loss, n in losses) / total if total else None
