"""Steps and single answers of a run computed again, and compared with what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fedloom.core.message import Plan
from fedloom.core.round import Round, initial_server, send
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.engines import Absent, Engine, Job
from fedloom.record import ClientDigests, RoundRecord, Score
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.digests import DigestChain, first_link
from fedloom.runs.evaluation import ScoreSheet
from fedloom.runs.experiment import Experiment
from fedloom.runs.privacy_account import PrivacyAccount
from fedloom.runs.runner import Runner
from fedloom.runs.store import ClientStates
from fedloom.verification.attendance import AsRecorded, Attendance
from fedloom.verification.findings import Tally
from fedloom.verification.records import RunRecords


class Replay:
    """Computes parts of a run again, in memory; the run folder is only read."""

    def __init__(
        self,
        run: RunRecords,
        experiment: Experiment,
        plans: Sequence[Plan],
        attendance: Sequence[Attendance],
        engine: Engine,
        tally: Tally,
    ) -> None:
        self._run, self._plans, self._tally = run, plans, tally
        self._attendance, self._engine = attendance, AsRecorded(engine)
        # What ended the training early is in the plans already.
        config = experiment.config.changed(early_stop=None, out=None)
        self._runner = Runner(replace(experiment, config=config), self._engine)
        self.answers: set[tuple[int, int]] = set()
        """Step and client of all that was computed again."""

    def stretch(self, steps: Iterable[int]) -> None:
        """Whole steps one after the other, up to the first that is not as recorded: what comes
        after it would differ for that reason alone."""
        for place, step in enumerate(steps):
            if place == 0:
                self._begin_at(step)
            if not self._step(step):
                return

    def alone(self, step: int, clients: Collection[int]) -> None:
        """Single answers of a step."""
        self._begin_at(step)
        runner, plan, record = self._runner, self._plans[step], self._run.steps[step]
        self._as_recorded(record)
        r = Round(runner.program, plan, runner.server, record.cohort)
        digester, sheet = runner.chain.step(), ScoreSheet()
        secure = runner.secure_round(plan, _attempt(record))
        if secure is not None:
            secure.prepare(record.cohort)

        def job(cid: int) -> Job:
            own = runner.clients.get(cid)
            down = send(r, cid, own)
            if secure is not None:
                own, down = secure.own(cid), secure.added_to(down)
            digester.sent(cid, down.state)
            return Job(cid, down, own)

        inside = runner.evaluator.inside(plan)
        for cid, up, kept in self._engine.clients(sorted(clients), job, inside):
            assert not isinstance(up, Absent)
            digester.answered(cid, up, kept)
            runner.evaluator.enter(cid, up.scores, sheet)
        if self._same_answers(step, digester.clients):
            self._same_scores(step, sheet.scores())

    def _step(self, step: int) -> bool:
        record, recorded = self._run.steps[step], self._run.digests[step]
        last = self._as_recorded(record)
        played = self._runner.play(self._plans[step], last, _attempt(record))
        where, now = self._run.where(step), played.digests
        if not self._same_answers(step, now.clients):
            return False
        other = "what the server made of the answers is not what was recorded"
        server = {other: now.server_after != recorded.server_after}
        if not self._tally.compare("server steps", where, server):
            return False
        self._runner.accept(played)
        if not self._same_scores(step, played.record.scores, all_of_them=True):
            return False
        rest = {
            "its loss, traffic or notes in metrics.jsonl are others": now.record != recorded.record
        }
        if any(rest.values()):
            return self._tally.compare("scores", where, rest)
        return True

    def _same_answers(self, step: int, entries: Iterable[ClientDigests]) -> bool:
        recorded = {entry.client: entry for entry in self._run.digests[step].clients}
        good = True
        for entry in entries:
            was = recorded.get(entry.client)
            where = f"{self._run.where(step)}, client {entry.client}"
            new = (step, entry.client) not in self.answers
            self.answers.add((step, entry.client))
            wrong = {
                "no answer was recorded": was is None,
                "the message to it differs": was is not None and was.message != entry.message,
                "its answer differs": was is not None and was.answer != entry.answer,
                "what it keeps differs": was is not None and was.after != entry.after,
            }
            if new:
                good = self._tally.compare("answers", where, wrong) and good
        return good

    def _same_scores(self, step: int, scores: Sequence[Score], all_of_them: bool = False) -> bool:
        """Every number, client by client."""
        record, good = self._run.steps[step], True
        for score in scores:
            was = record.score(score.at)
            for place, cid in enumerate(score.clients):
                wrong = {f"{score.at} differs": _of(was, cid) != _row(score, place)}
                where = f"{self._run.where(step)}, client {cid}"
                good = self._tally.compare("scores", where, wrong) and good
        measured = {score.at for score in scores}
        for extra in record.scores if all_of_them else ():
            if extra.at not in measured:
                wrong = {f"{extra.at} is not measured in this round": True}
                good = self._tally.compare("scores", self._run.where(step), wrong)
        return good

    def _as_recorded(self, record: RoundRecord) -> bool:
        """Ask who was there, and measure what the record says was measured: a round that was the
        last one when it was run, before the run was given more, has more scores than others. True:
        as in the last step."""
        self._engine.begin(self._attendance[record.step])
        if self._runner.account is not None and record.privacy is not None:
            self._runner.account.repeated = Counter(record.privacy.repeated)
        rounds = self._runner.experiment.config.rounds
        self._runner.evaluator.last_round = record.round if record.scores else rounds
        joined = any(score.at.group == "newcomers" for score in record.scores)
        special = record.kind == "special" and bool(record.scores)
        return joined or special or record.step == len(self._plans) - 1

    def _begin_at(self, step: int) -> None:
        runner = self._runner
        clients = ClientStates(int(self._run.config.memory * 2**20))
        runner.server = self._server_at(step, clients)
        runner.clients, runner.done = clients, step
        runner.account = PrivacyAccount.of(runner.program, self._run.steps[:step])
        runner.chain = (
            DigestChain.after(self._run.digests[:step])
            if step
            else DigestChain(self._run.server_before(0), first_link(runner.experiment))
        )

    def _server_at(self, step: int, clients: ClientStates) -> State:
        if step == 0:
            return initial_server(self._runner.program)
        return Checkpoints(self._run.paths.checkpoints).load(step, clients).server


def _of(score: Score | None, cid: int) -> object:
    if score is None or cid not in score.clients:
        return None
    return _row(score, score.clients.index(cid))


def _row(score: Score, place: int) -> object:
    """Rows and values of one client; NaN equals NaN by its text."""
    return score.rows[place], {name: repr(values[place]) for name, values in score.metrics.items()}


def _attempt(record: RoundRecord) -> int:
    """How often a masked round had been asked for in vain: its masks follow from that."""
    return int(record.notes.get(SECURE, {}).get("attempt", 0))
