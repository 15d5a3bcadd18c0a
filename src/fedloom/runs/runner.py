"""The loop over rounds: ask the engine, merge, evaluate, write down, checkpoint."""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from fedloom.core.digest import state_sha256
from fedloom.core.message import Plan
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.stopwatch import timed
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, nbytes
from fedloom.engines import Absent, Engine, Job
from fedloom.errors import TooFewAnswers
from fedloom.files import jsonable
from fedloom.methods import describe
from fedloom.record import RoundRecord, Seconds, Summary
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.choice import choose, headline, newcomers
from fedloom.runs.early_stop import EarlyStop
from fedloom.runs.evaluation import Evaluator, ScoreSheet
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import Journal, read_records, write_record
from fedloom.runs.ledger import Ledger
from fedloom.runs.store import ClientStates
from fedloom.runs.watcher import Stop, Watcher

TRIES = 3
"""How often a round is asked for when too few clients answer."""


@dataclass(frozen=True)
class EarlyEnd:
    """Where a watcher's `Stop` ends the training; kept in checkpoints."""

    reason: str
    finish: bool
    """Whether what comes after the training still happens."""
    plans: int
    """How many of the experiment's plans are done, up to the last training round."""
    of_rounds: int
    """The rounds that were asked for; a run that is given more goes on."""


class Runner:
    """One run of an experiment on an engine, in a folder or (folder None) in memory only.

    A `RunView` for its watchers.
    """

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        folder: RunFolder | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.experiment, self.engine, self.folder = experiment, engine, folder
        self.program = experiment.program
        early_stop = experiment.config.early_stop
        # It is asked first: Ctrl-C in another watcher must not leave a round without its answer.
        self.watchers = [*([] if early_stop is None else [EarlyStop(early_stop)]), *watchers]
        self.server: State = initial_server(self.program)
        self.clients = ClientStates(
            int(experiment.config.memory * 2**20), None if folder is None else folder.path
        )
        self.plans = list(experiment.plans)
        """The experiment's, cut short where a watcher stopped the training."""
        self.records: list[RoundRecord] = []
        self.warnings: list[str] = []
        self.done = 0
        self._early_end: EarlyEnd | None = None
        self._evaluator = Evaluator(experiment, engine)
        self._totals = {"bytes_up": 0.0, "bytes_down": 0.0, "seconds": 0.0}
        self._changed: set[int] = set()
        self._saved = -1
        self._whole = True
        self._journal: Journal | None = None
        self._ledger: Ledger | None = None
        self._ledger_bytes = 0
        self._checkpoints: Checkpoints | None = None

    def run(self) -> Summary:
        """Every plan that is left, then the summary."""
        try:
            self._run_plans()
            summary = self.summary()
        except BaseException:
            for watcher in self.watchers:
                watcher.stopped(self)
            raise
        if self.folder is not None:
            write_record(self.folder.summary, summary)
        for watcher in self.watchers:
            watcher.ended(self, summary)
        return summary

    def _run_plans(self) -> None:
        with one_thread(), self._writing():
            folder = None if self.folder is None else self.folder.path
            self.engine.open(self.program, self.experiment.data, folder)
            self._activities()  # what was before does not count
            try:
                for watcher in self.watchers:
                    watcher.begun(self)
                while self.done < len(self.plans):
                    self._step(self.plans[self.done])
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
        if stored := snapshot.extra.get("early_end"):
            early_end = EarlyEnd(**stored)
            if early_end.of_rounds == self.experiment.config.rounds:
                self._cut_plans(early_end)
        with Journal.open(self.folder.metrics) as journal:
            journal.truncate(snapshot.journal_bytes)
        self.records = read_records(self.folder.metrics, RoundRecord)

    def summary(self) -> Summary:
        """The run in one object."""
        config, method = self.experiment.config, self.program.method
        rounds = {record.round for record in self.records if record.kind == "train"}
        return Summary(
            method=describe(method),
            result=choose(self.experiment.protocol, self.records),
            newcomers=newcomers(self.experiment.protocol, self.records),
            protocol=config.protocol,
            rounds=len(rounds),
            clients=self.program.clients,
            seed=config.seed,
            bytes_up=int(self._totals["bytes_up"]),
            bytes_down=int(self._totals["bytes_down"]),
            seconds=self._totals["seconds"],
            activities=total([record.activities for record in self.records]),
            state_sha256=state_sha256(self.server, self.clients),
            partition_sha256=self.experiment.data.partition.fingerprint,
            run=None if self.folder is None else str(self.folder.path),
            stopped=None if self._early_end is None else self._early_end.reason,
            title=config.title,
        )

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
        sheet, kept = ScoreSheet(), self.clients.draft()
        bytes_up = bytes_down = 0
        absent = dict[int, str]()

        def job(cid: int) -> Job:
            nonlocal bytes_down
            down = send(r, cid)
            bytes_down += nbytes(down.state)
            return Job(cid, down, self.clients.get(cid))

        inside = self._evaluator.inside(plan)
        for cid, up, own in self.engine.clients(cohort, job, inside):
            if isinstance(up, Absent):
                absent[cid] = up.why
                r.add(cid, None)
                continue
            bytes_up += nbytes(up.state)
            self._evaluator.enter(cid, up.scores, sheet)
            if self._ledger is not None:
                self._ledger.enter(cid, up)
            with timed("aggregation"):
                r.add(cid, up)
            kept[cid] = own
        self._check_enough(r, absent)
        with timed("aggregation"):
            server = merge(r)
        last = self.done == len(self.plans) - 1
        self._evaluator.after(r, present, server, ChainMap(kept, self.clients), sheet, last)
        scores = sheet.scores()
        record = RoundRecord(
            step=self.done,
            round=plan.t,
            kind=plan.kind,
            owner=plan.owner,
            cohort=tuple(cohort),
            loss=_mean_loss(r),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            seconds=time.perf_counter() - begun,
            activities=self._activities(),
            scores=scores,
            absent=absent,
            notes=jsonable(r.notes),
            headline=headline(self.experiment.protocol, scores),
        )
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

    def _activities(self) -> Seconds:
        """Seconds by activity since the last call, here and in the engine's other processes."""
        return {"main": timed.drain(), "workers": self.engine.elsewhere.drain()}

    def _commit(self, record: RoundRecord, server: State, kept: ClientStates) -> None:
        self._whole = False  # Ctrl-C may come between any two of these lines
        self.server = server
        self.clients.accept(kept)
        self._changed |= kept.keys()
        self.done += 1
        self._totals["bytes_up"] += record.bytes_up
        self._totals["bytes_down"] += record.bytes_down
        self._totals["seconds"] += record.seconds
        self.records.append(record)
        if self._journal is not None:
            self._journal.append(record)
        if self._ledger is not None:
            self._ledger.end_step(record)
        self._whole = True
        self._tell_watchers(record)
        if self._checkpoint_due():
            self._checkpoint()

    def _tell_watchers(self, record: RoundRecord) -> None:
        for watcher in self.watchers:
            stop = watcher.step(self, record)
            if stop is None or self._early_end is not None:
                continue
            end = self.done + self._needs_another_round(stop, record)
            if any(plan.kind == "train" for plan in self.plans[end:]):
                rounds = self.experiment.config.rounds
                self._cut_plans(EarlyEnd(stop.reason, stop.finish, end, rounds))

    def _needs_another_round(self, stop: Stop, record: RoundRecord) -> bool:
        """The last round measures what others may not: the run's number, where rounds are left out
        of the curve, newcomers, and everybody where the protocol wants them all. A run that ends
        after a round without these has one more, and no number without it."""
        if not stop.finish:
            return not any(done.headline for done in self.records)
        left = self.experiment.plans[self.done :]
        whole_last_round = self.experiment.protocol.full_last_round
        if any(plan.kind != "train" for plan in left):
            return record.kind != "train" or whole_last_round
        newcomers = self.experiment.config.newcomers > 0
        return record.headline is None or newcomers or whole_last_round

    def _cut_plans(self, early_end: EarlyEnd) -> None:
        """End the training early, and do what comes after training as in a run that was meant to
        have so many rounds."""
        training = self.experiment.plans[: early_end.plans]
        if self.experiment.protocol.full_last_round and early_end.finish:
            training[-1] = replace(training[-1], cohort="all")
        closing = [
            replace(plan, t=training[-1].t + 1)
            for plan in self.experiment.plans[early_end.plans :]
            if plan.kind != "train"
        ]
        self._early_end = early_end
        self._evaluator.last_round = training[-1].t
        self.plans = [*training, *(closing if early_end.finish else [])]

    def _checkpoint_due(self) -> bool:
        """Every so many steps, and where training ends: from there more rounds can be added. The
        few steps after it are saved together at the end, so that this one stays."""
        if self.engine.keeps_states:
            return True
        if self.plans[self.done - 1].kind != "train":
            return self.done < len(self.plans) and self.plans[self.done].kind == "train"
        training_ends = self.done == len(self.plans) or self.plans[self.done].kind != "train"
        return training_ends or self.done % self.experiment.config.checkpoint_every == 0

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
            extra={
                "ledger_bytes": self._ledger.sync(),
                "early_end": None if self._early_end is None else asdict(self._early_end),
            },
        )
        with timed("saving"):
            self._checkpoints.save(snapshot, self._changed)
        self._saved, self._changed = self.done, set()


def total(activities: Sequence[Seconds]) -> dict[str, dict[str, float]]:
    """Seconds by place and activity, over rounds.

    >>> total([{"main": {"data": 1.0}}, {"main": {"data": 2.0}, "workers": {}}])
    {'main': {'data': 3.0}, 'workers': {}}
    """
    summed: dict[str, dict[str, float]] = {}
    for by_place in activities:
        for place, seconds in by_place.items():
            so_far = summed.setdefault(place, {})
            for name, more in seconds.items():
                so_far[name] = so_far.get(name, 0.0) + more
    return summed


def _mean_loss(r: Round) -> float | None:
    """Training loss over the cohort, weighted by samples."""
    losses = [(up.metrics["loss"], up.n) for up in r.ups.values() if "loss" in up.metrics]
    rows = sum(n for _, n in losses)
    return sum(loss * n for loss, n in losses) / rows if rows else None
