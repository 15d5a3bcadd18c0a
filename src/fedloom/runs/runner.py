"""The loop over rounds: ask the engine, merge, evaluate, write down, checkpoint."""

from __future__ import annotations

import logging
import time
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from pydantic import Field

from fedloom.core.digest import state_sha256
from fedloom.core.message import Plan, Up
from fedloom.core.net import METHOD
from fedloom.core.revelations import ROWS_UNTOLD
from fedloom.core.round import Round, initial_server, merge, send
from fedloom.core.secure.setting import Pairwise
from fedloom.core.stopwatch import timed
from fedloom.core.threads import one_thread
from fedloom.core.tree import State, Tree
from fedloom.engines import Absent, Engine, Job
from fedloom.errors import (
    CheckpointError,
    NotUnmasked,
    TooFewAnswers,
    naming_lack_of_memory,
)
from fedloom.files import jsonable
from fedloom.methods import describe
from fedloom.record import PrivacySpent, RoundRecord, Seconds, StepDigests, Summary, load
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.choice import choose, headline, newcomers
from fedloom.runs.digests import DigestChain
from fedloom.runs.early_stop import EarlyStop
from fedloom.runs.evaluation import Evaluator, ScoreSheet
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import Journal, plain_line, plain_record, read_records, write_record
from fedloom.runs.ledger import Ledger
from fedloom.runs.privacy_account import Answers, Budget, PrivacyAccount
from fedloom.runs.secure_round import SecureRound, Traffic
from fedloom.runs.states import States
from fedloom.runs.store import ClientStates
from fedloom.runs.unmasked_sums import UnmaskedSums
from fedloom.runs.watcher import Stop, Watcher
from fedloom.signals import delaying_stops

log = logging.getLogger("fedloom")

TRIES = 3
"""How often a round is asked for when too few clients answer."""


@dataclass(frozen=True)
class EarlyEnd:
    """Where a watcher's `Stop` ends the training; kept in checkpoints."""

    reason: str
    finish: bool
    """Whether what comes after the training still happens."""
    plans: Annotated[int, Field(ge=1)]
    """How many of the experiment's plans are done, up to the last training round."""
    of_rounds: int
    """The rounds that were asked for; a run that is given more goes on."""


@dataclass(frozen=True)
class PlayedStep:
    """A plan that was carried out, but does not count yet."""

    record: RoundRecord
    server: State
    kept: ClientStates
    """Of the clients that answered."""
    journal_line: bytes
    digests: StepDigests
    digests_line: bytes


@dataclass(frozen=True)
class Progress:
    """What a checkpoint holds beside the states."""

    ledger_bytes: Annotated[int, Field(ge=0)]
    digests_bytes: Annotated[int, Field(ge=0)] | None = None
    """None: the run began before digests were recorded."""
    early_end: EarlyEnd | None = None


class _EnteredTraffic(Traffic):
    """The traffic of a step, which the run's ledger tells of."""

    def __init__(self, ledger: Ledger | None) -> None:
        super().__init__()
        self._ledger = ledger

    def came(self, cid: int, up: Up) -> None:
        super().came(cid, up)
        if self._ledger is not None:
            self._ledger.enter(cid, up)


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
        self.before_last_round: States | None = None
        """Where the last training round began, if the result is of models trained in it."""
        self._server_before, self._replaced = self.server, dict[int, State | None]()
        self._early_end: EarlyEnd | None = None
        self.evaluator = Evaluator(experiment, engine)
        self.chain = DigestChain.begun(experiment, self.server)
        self.account = PrivacyAccount.of(self.program)
        self._totals = {"bytes_up": 0.0, "bytes_down": 0.0, "seconds": 0.0}
        self._changed: set[int] = set()
        self._saved = -1
        self._whole = True
        self._journal: Journal | None = None
        self._ledger: Ledger | None = None
        self._ledger_bytes = 0
        self._digests: Journal | None = None
        self._digests_bytes: int | None = 0
        """None: the run began with a fedloom that took no digests, and goes on without."""
        self._checkpoints: Checkpoints | None = None
        self._sums: UnmaskedSums | None = None
        if folder is not None and self.program.secure is not None and engine.keeps_states:
            self._sums = UnmaskedSums(folder.unmasked)

    def run(self) -> Summary:
        """Every plan that is left, then the summary."""
        try:
            with naming_lack_of_memory("the run's main process"):
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
                    self._keep_to_budget()
                    self._step(self.plans[self.done])
            finally:
                self._checkpoint()  # also after an error or Ctrl-C: nothing done is lost

    def restore(self) -> None:
        """Go back to the newest good checkpoint of the folder, or to the beginning."""
        assert self.folder is not None
        checkpoints = self._checkpoints_in(self.folder)
        if not checkpoints.steps():
            return
        snapshot, self.warnings = checkpoints.load_latest(self.clients)
        progress = self._checked(snapshot)
        self.done, self.server = snapshot.step, snapshot.server
        self._totals = {key: snapshot.totals[key] for key in self._totals}
        self._checkpoints, self._saved = checkpoints, snapshot.step
        self._ledger_bytes = progress.ledger_bytes
        if early_end := stored_early_end(self.experiment, progress):
            self._cut_plans(early_end)
        self._restore_digests(self.folder, progress)
        with Journal.open(self.folder.metrics) as journal:
            journal.truncate(snapshot.journal_bytes)
        self.records = read_records(self.folder.metrics, RoundRecord)
        self.account = PrivacyAccount.of(self.program, self.records)

    def _restore_digests(self, folder: RunFolder, progress: Progress) -> None:
        self._digests_bytes = progress.digests_bytes
        if self._digests_bytes is not None:
            with Journal.open(folder.digests) as journal:
                journal.truncate(self._digests_bytes)
            if lines := read_records(folder.digests, StepDigests):
                self.chain = DigestChain.after(lines)

    def _checked(self, snapshot: Snapshot) -> Progress:
        """What a checkpoint says beside the states, which must be of this run."""
        assert self.folder is not None
        where = f"the newest checkpoint in {self.folder.checkpoints}"
        progress = load(Progress, snapshot.extra, where)
        plans, early_end = len(self.experiment.plans), progress.early_end
        model, initial = snapshot.server.get(METHOD, {}), self.server.get(METHOD, {})
        for fits, what in (
            (snapshot.step <= plans, f"is at step {snapshot.step} of {plans}"),
            (early_end is None or 0 < early_end.plans <= plans, "ends early outside of the plan"),
            (self._totals.keys() <= snapshot.totals.keys(), "lacks the run's totals"),
            (all(0 <= cid < self.program.clients for cid in snapshot.clients), "has other clients"),
            (_shapes(model) == _shapes(initial), "has a model of other tensors"),
        ):
            if not fits:
                raise CheckpointError(
                    f"{where} {what}, so it is not of this run; restore it, or start again with"
                    " --overwrite"
                )
        return progress

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
            digest=None if self._digests_bytes is None else self.chain.link,
            privacy=self._privacy_spent(),
        )

    def _privacy_spent(self) -> PrivacySpent | None:
        """In all, as the last step left it."""
        if self.account is None or not self.records:
            return None
        last = self.records[-1].privacy
        assert last is not None
        return replace(last, mechanisms=dict(sorted(self.account.mechanisms.items())), repeated={})

    def _step(self, plan: Plan) -> None:
        """One plan, asked again where too few clients answered for it to count."""
        for attempt in range(TRIES - 1):
            with suppress(TooFewAnswers):
                self._commit(self.play(plan, attempt=attempt))
                return
        self._commit(self.play(plan, attempt=TRIES - 1))

    def play(self, plan: Plan, last: bool | None = None, attempt: int = 0) -> PlayedStep:
        """Carry out a plan; nothing of it counts before all of it is done.

        `last` says whether it is the run's last, which is scored more fully; by default as the
        list of plans has it. `attempt` counts how often the plan was asked for before.
        """
        begun = time.perf_counter()
        present = list(self.engine.present(self.program.clients))
        cohort = self.program.cohort(plan, self.experiment.config.participation, present)
        r = Round(self.program, plan, self.server, cohort)
        sheet, kept, digester = ScoreSheet(), self.clients.draft(), self.chain.step()
        absent, answers, traffic = dict[int, str](), Answers(), _EnteredTraffic(self._ledger)
        secure = self.secure_round(plan, attempt, traffic)
        asked = cohort if secure is None else self._prepared(secure, r, absent)

        def job(cid: int) -> Job:
            own = self.clients.get(cid)
            down = send(r, cid, own)
            if secure is not None:
                own, down = secure.own(cid), secure.added_to(down)
            traffic.sent(cid, down.state)
            digester.sent(cid, down.state)
            return Job(cid, down, own)

        inside = self.evaluator.inside(plan)
        for cid, up, own in self.engine.clients(asked, job, inside):
            if isinstance(up, Absent):
                absent[cid] = up.why
                r.add(cid, None)
                continue
            traffic.came(cid, up)
            answers[cid] = None if up.n == ROWS_UNTOLD else up.n
            self.evaluator.enter(cid, up.scores, sheet)
            digester.answered(cid, up, own)
            with timed("aggregation"):
                r.add(cid, up)
            kept[cid] = own
        self._check_enough(r, absent, answers, 0 if secure is None else secure.least)
        digester.hash_waiting()  # here, so that its time counts for this step
        server = self._merged(r, secure, answers)
        if last is None:
            last = self.done == len(self.plans) - 1
        self.evaluator.after(r, present, server, ChainMap(kept, self.clients), sheet, last)
        scores = sheet.scores()
        record = RoundRecord(
            step=self.done,
            round=plan.t,
            kind=plan.kind,
            owner=plan.owner,
            cohort=tuple(cohort),
            loss=_mean_loss(r),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            seconds=time.perf_counter() - begun,
            activities=self._activities(),
            scores=scores,
            absent=absent,
            rows={cid: n for cid, n in sorted(answers.items()) if n is not None},
            notes=jsonable(r.notes),
            headline=headline(self.experiment.protocol, scores),
            privacy=None if self.account is None else self.account.after(plan, answers),
        )
        plain = plain_record(record)
        changed = None if server is self.server else server
        linked = digester.ended(self.done, changed, plain)
        return PlayedStep(record, server, kept, plain_line(plain), linked.digests, linked.line)

    def secure_round(
        self, plan: Plan, attempt: int = 0, traffic: Traffic | None = None
    ) -> SecureRound | None:
        """For a plan whose uploads are masked."""
        if self.program.secure is None or plan.kind == "adapt":
            return None
        own, engine = self.clients.get, self.engine
        return SecureRound(self.program, plan, attempt, self.server, engine, own, traffic)

    def _prepared(self, secure: SecureRound, r: Round, absent: dict[int, str]) -> list[int]:
        """Who is a member of a round with secure aggregation; who is not, is absent."""
        try:
            return secure.prepare(r.cohort)
        except TooFewAnswers:
            self._give_up(r, {})
            raise
        finally:
            absent |= secure.absent
            for cid in secure.absent:
                r.add(cid, None)

    def _merged(self, r: Round, secure: SecureRound | None, answers: Answers) -> State:
        """The server's state after a round that enough clients answered."""
        if secure is None:
            with timed("aggregation"):
                return merge(r)
        try:
            with timed("secure aggregation"):
                if self._sums is not None:
                    self._sums.begin(self.done, r.ups)
                secure.unmask(r)
        except NotUnmasked:
            self._give_up(r, answers)
            raise
        self._warn_of_clipping(r, secure.setting)
        with timed("aggregation"):
            return secure.kept_by_server(merge(r), r.ups)

    def _warn_of_clipping(self, r: Round, setting: Pairwise) -> None:
        """How far beyond the range numbers were, nobody but their clients knows."""
        in_slices = {name for name, count in r.clipped.items() if count}
        if in_slices:
            totals = self.program.method.name in in_slices
            wider = setting.wider(bool(in_slices - {self.program.method.name}), totals)
            log.warning(
                "%s: %d numbers of uploads were clipped, so the mean is not the one without masks;"
                " if training goes well otherwise, set secure_aggregation = %r",
                *(r.plan, sum(r.clipped.values()), str(wider)),
            )

    def _check_enough(
        self, r: Round, absent: dict[int, str], answers: Answers, for_sums: int
    ) -> None:
        """`for_sums`: how many uploads secure aggregation takes."""
        least = max(self.experiment.config.min_clients, for_sums)
        if len(r.ups) < least:
            self._give_up(r, answers)
            reasons = "; ".join(f"client {cid}: {why}" for cid, why in sorted(absent.items()))
            needed = f"min_clients = {least}"
            if least == for_sums:
                needed = f"the {least} that secure aggregation needs"
            raise TooFewAnswers(
                f"{r.plan}: {len(r.ups)} of {len(r.cohort)} clients answered, fewer than"
                f" {needed} ({reasons}); nothing of this round counts, see to them"
            )

    def _give_up(self, r: Round, answers: Answers) -> None:
        """The round does not count; what came had left all the same."""
        if self.account is not None:
            self.account.give_up(r.plan, answers)
        if self._ledger is not None:
            self._ledger.give_up(self.done, r.plan)

    def _activities(self) -> Seconds:
        """Seconds by activity since the last call, here and in the engine's other processes."""
        return {"main": timed.drain(), "workers": self.engine.elsewhere.drain()}

    def _commit(self, played: PlayedStep) -> None:
        record = played.record
        with delaying_stops():  # Ctrl-C after all of these lines, so that the step is saved
            self._whole = False  # a full disk may end it between any two of them
            self.accept(played)
            self._changed |= played.kept.keys()
            self._totals["bytes_up"] += record.bytes_up
            self._totals["bytes_down"] += record.bytes_down
            self._totals["seconds"] += record.seconds
            self.records.append(record)
            if self._journal is not None:
                self._journal.append_line(played.journal_line)
            if self._digests is not None:
                self._digests.append_line(played.digests_line)
            if self._ledger is not None:
                self._ledger.end_step(record)
            self._whole = True
        self._tell_watchers(record)
        if self._checkpoint_due():
            self._checkpoint()

    def accept(self, played: PlayedStep) -> None:
        """Take over the states of a step: the next plan goes on from them."""
        if self._judged_after_training:
            self._remember(played)
        self.server = played.server
        self.clients.accept(played.kept)
        self.chain.accept(played.digests)
        if self.account is not None and played.record.privacy is not None:
            self.account.accept(played.record.privacy)
        self.done += 1

    def _remember(self, played: PlayedStep) -> None:
        """Hold on to what the newest training round, or a step after it, is about to replace."""
        if played.record.kind == "train":
            self._replaced, self._server_before = {}, self.server
        old = {cid: self.clients.get(cid) for cid in played.kept}
        self._replaced = {**old, **self._replaced}
        before = States.before(self._server_before, self.clients, self._replaced)
        self.before_last_round = before

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

    def _keep_to_budget(self) -> None:
        """Make the next training round the last one, if the budget of `privacy` permits no more."""
        privacy, left = self.program.privacy, self.plans[self.done :]
        if privacy is None or not privacy.budget or self.account is None or left[0].kind != "train":
            return
        # Which sites will be there is not known before they are asked.
        anybody = self.engine.keeps_states
        present = None if anybody else list(self.engine.present(self.program.clients))
        reason = Budget(self.experiment, self.account, privacy).ends_with(left, present)
        if reason:
            rounds = self.experiment.config.rounds
            self._cut_plans(EarlyEnd(reason, True, self.done + 1, rounds))

    def _cut_plans(self, early_end: EarlyEnd) -> None:
        """End the training early."""
        self._early_end = early_end
        self.evaluator.last_round = self.experiment.plans[early_end.plans - 1].t
        self.plans = cut_plans(self.experiment, early_end)

    @property
    def _judged_after_training(self) -> bool:
        """Are the models of the result those after the last round's local training?"""
        return self.experiment.protocol.moment == "trained" and not self.engine.keeps_states

    def _checkpoint_due(self) -> bool:
        """Every so many steps, and where training ends: from there more rounds can be added. The
        few steps after it are saved together at the end, so that this one stays. Where models after
        the last local training are the result, also before it: from there they can be made again.
        """
        if self.engine.keeps_states:
            return True
        left = [plan.kind for plan in self.plans[self.done :]]
        if self._judged_after_training and left.count("train") == 1 and left[0] == "train":
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
        self._checkpoints = self._checkpoints or self._checkpoints_in(self.folder)
        with ExitStack() as files:
            self._journal = files.enter_context(Journal.open(self.folder.metrics))
            ledger = Ledger.open(self.folder.ledger, self._ledger_bytes)
            self._ledger = files.enter_context(ledger)
            if self.done == 0:
                self._journal.truncate(0)
            if self._digests_bytes is not None:
                self._digests = files.enter_context(Journal.open(self.folder.digests))
                self._digests.truncate(self._digests_bytes)
            yield
        self._journal = self._ledger = self._digests = None

    def _checkpoints_in(self, folder: RunFolder) -> Checkpoints:
        # Receipts are no states: nothing can be computed from an earlier checkpoint of them.
        megabytes = 0 if self.engine.keeps_states else self.experiment.config.history
        kept = self.engine.checkpoints_kept
        return Checkpoints(folder.checkpoints, kept, history=int(megabytes * 2**20))

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
            extra=asdict(
                Progress(
                    self._ledger.sync(),
                    None if self._digests is None else self._digests.sync(),
                    self._early_end,
                )
            ),
        )
        with timed("saving"):
            self._checkpoints.save(snapshot, self._changed)
        self._saved, self._changed = self.done, set()


def stored_early_end(experiment: Experiment, progress: Progress) -> EarlyEnd | None:
    """Where the training was ended early, unless the run was given more rounds since."""
    early_end = progress.early_end
    if early_end is None or early_end.of_rounds != experiment.config.rounds:
        return None
    return early_end


def cut_plans(experiment: Experiment, early_end: EarlyEnd) -> list[Plan]:
    """An experiment's plans up to an early end, and what comes after training as in a run that was
    meant to have so many rounds."""
    training = experiment.plans[: early_end.plans]
    if experiment.protocol.full_last_round and early_end.finish:
        training[-1] = replace(training[-1], cohort="all")
    closing = [
        replace(plan, t=training[-1].t + 1)
        for plan in experiment.plans[early_end.plans :]
        if plan.kind != "train"
    ]
    return [*training, *(closing if early_end.finish else [])]


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


def _shapes(tree: Tree) -> dict[str, tuple[object, ...]]:
    return {key: (tuple(value.shape), value.dtype) for key, value in tree.items()}


def _mean_loss(r: Round) -> float | None:
    """Training loss over the cohort, weighted by samples."""
    # Clients that do not tell their rows count alike.
    losses = [
        (up.metrics["loss"], 1 if up.n == ROWS_UNTOLD else up.n)
        for up in r.ups.values()
        if "loss" in up.metrics
    ]
    rows = sum(n for _, n in losses)
    return sum(loss * n for loss, n in losses) / rows if rows else None
