"""One run judged under several protocols, without training it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedloom.core.evaluate import FINAL
from fedloom.core.message import Plan
from fedloom.core.round import Round, send
from fedloom.core.tree import State
from fedloom.engines import Job, check_device
from fedloom.engines.inline import Inline
from fedloom.errors import BadInput
from fedloom.record import Chosen, RoundRecord, Summary
from fedloom.runs.choice import choose, result_at
from fedloom.runs.evaluation import Evaluator, ScoreSheet
from fedloom.runs.watcher import RunView, Watcher


class OtherProtocols(Watcher):
    """Judges the run it watches under further protocols.

    What the run scored anyway is taken from its journal. What its journal lacks is measured beside
    it, one client after another in this process: the global model, tuning on copies, and other
    final epochs of the head. Nothing of the run changes. Of a run that goes on after a stop, only
    the rounds from there on have what the journal lacks.

    >>> from fedloom import run
    >>> others = OtherProtocols(["dbe", "fedcr"])
    >>> result = run("fedavg", rounds=2, clients=4, partition="iid", watchers=[others])
    >>> others.results["dbe"].select, others.results["fedcr"].at.moment
    ('best_test', 'final')
    """

    results: dict[str, Chosen]
    """Protocol, as it was written -> its number of the run, from the run's end on."""
    refused: dict[str, str]
    """Protocol -> why this run has no number under it."""

    def __init__(self, protocols: Sequence[str]) -> None:
        self.protocols = tuple(protocols)
        self.results, self.refused = {}, {}
        self._judges: dict[str, _Judge] = {}

    def begun(self, run: RunView) -> None:
        for expression in self.protocols:
            try:
                self._judges[expression] = _Judge(expression, run)
            except BadInput as e:
                self.refused[expression] = str(e)

    def step(self, run: RunView, record: RoundRecord) -> None:
        for judge in self._judges.values():
            judge.step(run, record)

    def ended(self, run: RunView, summary: Summary) -> None:
        for expression, judge in self._judges.items():
            try:
                self.results[expression] = judge.decide(run)
            except BadInput as e:
                self.refused[expression] = str(e)


class _Judge:
    """One protocol's reading of a run."""

    def __init__(self, expression: str, run: RunView) -> None:
        other = run.experiment.judged_by(expression)
        if other.protocol.full_last_round and run.experiment.config.participation < 1:
            raise BadInput(
                f"protocol {expression!r} trains everybody in the last round, and this run does"
                " not; set participation = 1"
            )
        self.engine = Inline(check_device(other.config.device))
        self.engine.open(other.program, other.data)
        # Only the result's own model is measured beside the run.
        self.experiment = replace(other, protocol=replace(other.protocol, also=()))
        self.evaluator = Evaluator(self.experiment, self.engine)
        self.at = result_at(other.protocol)
        self.records = list(run.records)

    def step(self, run: RunView, record: RoundRecord) -> None:
        """Note a step of the run; where any of its rounds may count, with what it did not score."""
        evaluated = record.kind != "adapt" and bool(record.scores)
        if evaluated and self.experiment.protocol.select != "last":
            record = self._completed(run, record)
        self.records.append(record)

    def decide(self, run: RunView) -> Chosen:
        """The number of the run, after what its last state still has to be asked."""
        protocol = self.experiment.protocol
        if self.at.moment == "final":
            if protocol.head_epochs != run.experiment.protocol.head_epochs:
                self.records.append(self._final_models(run))
        elif protocol.select == "last":
            end = max(i for i, record in enumerate(self.records) if record.kind != "adapt")
            self.records[end] = self._completed(run, self.records[end])
        return choose(protocol, self.records)

    def _completed(self, run: RunView, record: RoundRecord) -> RoundRecord:
        """A step with the score of the result; models after training are at hand only while a
        client trains, so the run itself has to score these."""
        if record.score(self.at) is not None or self.at.moment == "trained":
            return record
        sheet, program = ScoreSheet(), self.experiment.program
        step = Plan(record.round, record.kind, record.owner, "all", program.seed, program.clients)
        done = Round(program, step, run.server)
        everybody = list(range(program.clients))
        self.evaluator.after(done, everybody, run.server, _without_final(run), sheet, last=True)
        more = [score for score in sheet.scores() if record.score(score.at) is None]
        return replace(record, scores=(*record.scores, *more))

    def _final_models(self, run: RunView) -> RoundRecord:
        """This protocol's final epochs at every client, after the run's last round."""
        plan, sheet = self.experiment.plans[-1], ScoreSheet()
        everybody = list(range(self.experiment.program.clients))
        r = Round(self.experiment.program, plan, run.server, everybody)
        clients = _without_final(run)

        def job(cid: int) -> Job:
            own = clients.get(cid)
            return Job(cid, send(r, cid, own), own)

        ask = self.evaluator.inside(plan)
        for cid, up, _ in self.engine.clients(everybody, job, ask):
            self.evaluator.enter(cid, up.scores, sheet)
        last = self.records[-1]
        return replace(last, step=last.step + 1, round=plan.t, kind="adapt", scores=sheet.scores())


def _without_final(run: RunView) -> Mapping[int, State]:
    """What clients keep but for the run's own final models: as training left it."""
    return {
        cid: {name: tree for name, tree in own.items() if not name.startswith(FINAL)}
        for cid, own in run.clients.items()
    }
