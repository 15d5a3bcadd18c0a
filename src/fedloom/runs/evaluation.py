"""What is measured when, for a protocol: inside the clients' calls and after a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedloom.core.data import shared_test_id
from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Plan
from fedloom.core.net import METHOD
from fedloom.core.round import Round, send
from fedloom.core.score import GLOBAL, PERSONAL, ClientScore, Moment
from fedloom.core.tree import State
from fedloom.engines import Engine, Job
from fedloom.record import At, Group, Score
from fedloom.runs.experiment import Experiment

WHOLE_MODELS = (PERSONAL, GLOBAL)
"""They come first; single heads follow."""


class ScoreSheet:
    """The scores of one step as they come in."""

    def __init__(self) -> None:
        self._by_key: dict[At, dict[int, ClientScore]] = defaultdict(dict)

    def add(self, cid: int, scores: Iterable[ClientScore], group: Group = "clients") -> None:
        """Take what was measured at one client."""
        for score in scores:
            at = At(score.moment, score.split, score.model, group)
            self._by_key[at][cid] = score

    def scores(self) -> tuple[Score, ...]:
        """Everything so far, in a fixed order of keys and clients."""
        keys = sorted(self._by_key, key=lambda at: (at.model not in WHOLE_MODELS, at))
        return tuple(Score.gathered(at.group, self._by_key[at]) for at in keys)


class Evaluator:
    """Measures one experiment on one engine; changes nothing."""

    def __init__(self, experiment: Experiment, engine: Engine) -> None:
        self.experiment, self.engine = experiment, engine
        self.program, self.protocol = experiment.program, experiment.protocol
        method = self.program.method
        self._moments: set[Moment] = {self.protocol.moment_of(method), *self.protocol.also}
        self.last_round = experiment.config.rounds
        """Is always scored; an earlier one where the training is stopped."""

    def inside(self, plan: Plan) -> Ask | None:
        """What to measure in a client's call, where the trained model is at hand anyway."""
        if self.protocol.model == "global":
            return None
        if plan.kind == "adapt":
            return Ask(("final",), self.protocol.splits)
        if plan.kind == "train" and "trained" in self._moments and self._due(plan):
            return Ask(("trained",), self.protocol.splits)
        return None

    def after(
        self,
        done: Round,
        present: list[int],
        server: State,
        clients: Mapping[int, State],
        sheet: ScoreSheet,
        last: bool,
    ) -> None:
        """Score the state after a round: every `eval_every` rounds and after the last plan, but
        never between special rounds, where a part may not have its slice yet."""
        plan, answered = done.plan, list(done.ups)
        if not last and not (plan.kind == "train" and self._due(plan)):
            return
        r = Round(self.program, plan, server)
        if self.protocol.on == "shared":
            if plan.kind != "adapt":  # an adaptation leaves the server as it was
                self._score_shared(r, sheet)
            return
        ids = answered if self.protocol.clients == "cohort" else present
        self._score(r, ids, self._moments_after(plan), clients, sheet)
        if self.protocol.moment == "trained" and self.protocol.clients == "all":
            absent = sorted(set(present) - set(answered))
            self._score(r, absent, ("trained",), clients, sheet)
        if last and self.experiment.config.newcomers:
            joining = range(self.program.clients, len(self.experiment.data))
            self._score(r, joining, ("received", "adapted"), clients, sheet, "newcomers")

    def _due(self, plan: Plan) -> bool:
        return plan.t % self.experiment.config.eval_every == 0 or plan.t == self.last_round

    def _moments_after(self, plan: Plan) -> tuple[Moment, ...]:
        if plan.kind == "adapt":
            return ()  # it makes the final models, which are scored inside, and changes no other
        moments = self._moments - {"trained", "final"}
        if self.protocol.moment == "final" and plan.kind == "train":
            moments.add("received")  # the curve of a method that adapts only at the end
        return tuple(sorted(moments))

    def _score(
        self,
        r: Round,
        ids: Sequence[int],
        moments: tuple[Moment, ...],
        clients: Mapping[int, State],
        sheet: ScoreSheet,
        group: Group = "clients",
    ) -> None:
        if not ids or not moments:
            return
        ask = Ask(moments, self.protocol.splits, self.protocol.model)

        def job(cid: int) -> Job:
            return Job(cid, send(r, cid), clients.get(cid))

        for cid, scores in self.engine.evaluate(ids, job, ask):
            sheet.add(cid, scores, group)

    def _score_shared(self, r: Round, sheet: ScoreSheet) -> None:
        """The global model on every shared test set, under the split that the protocol reports."""
        tests = [shared_test_id(i) for i in range(len(self.experiment.data.shared_tests))]
        message = Down(r.plan, {METHOD: r.server[METHOD]})
        ask = Ask(("received",), ("test",), "global")
        for cid, scores in self.engine.evaluate(tests, lambda i: Job(i, message, None), ask):
            split = self.protocol.split
            named = [replace(score, split=split) for score in scores]
            sheet.add(shared_test_id(cid), named, "shared tests")
