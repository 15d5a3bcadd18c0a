"""What is measured when, for a protocol: inside the clients' calls and after a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fedloom.core.data import shared_test_id
from fedloom.core.evaluate import Ask, Moment, Score
from fedloom.core.message import Down, Plan
from fedloom.core.net import METHOD
from fedloom.core.round import Round, send
from fedloom.core.tree import State
from fedloom.engines import Engine, Job
from fedloom.runs.experiment import Experiment

NEWCOMERS, SHARED = "newcomers/", "shared"


class Scores:
    """Scores by "moment/split", then by client."""

    def __init__(self) -> None:
        self.at: dict[str, dict[int, Score]] = defaultdict(dict)

    def read(self, cid: int, metrics: Mapping[str, float]) -> None:
        """Take what was measured inside a client's call: flat keys "moment/split/name"."""
        for key, value in metrics.items():
            at, _, name = key.rpartition("/")
            if at:
                self.at[at].setdefault(cid, {})[name] = value


class Evaluator:
    """Measures one experiment on one engine; changes nothing."""

    def __init__(self, experiment: Experiment, engine: Engine) -> None:
        self.experiment, self.engine = experiment, engine
        self.program, self.protocol = experiment.program, experiment.protocol
        method = self.program.method
        self._moments: set[Moment] = {self.protocol.moment_of(method), *self.protocol.also}

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
        scores: Scores,
    ) -> None:
        """Score the state after a round: every `eval_every` rounds and at the end, but never
        between special rounds, where a part may not have its slice yet."""
        plan, answered = done.plan, list(done.ups)
        last = plan is self.experiment.plans[-1]
        if not last and not (plan.kind == "train" and self._due(plan)):
            return
        if self.protocol.on == "shared":
            if plan.kind != "adapt":  # which leaves the server as it was
                self._score_shared(Round(self.program, plan, server), scores)
            return
        r = Round(self.program, plan, server)
        ids = answered if self.protocol.clients == "cohort" else present
        self._score(r, ids, self._moments_after(plan), clients, scores)
        if self.protocol.moment == "trained" and self.protocol.clients == "all":
            absent = sorted(set(present) - set(answered))
            self._score(r, absent, ("trained",), clients, scores)
        if last and self.experiment.config.newcomers:
            joining = range(self.program.clients, len(self.experiment.data))
            self._score(r, list(joining), ("received", "adapted"), clients, scores, NEWCOMERS)

    def _due(self, plan: Plan) -> bool:
        config = self.experiment.config
        return plan.t % config.eval_every == 0 or plan.t == config.rounds

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
        ids: list[int],
        moments: tuple[Moment, ...],
        clients: Mapping[int, State],
        scores: Scores,
        prefix: str = "",
    ) -> None:
        if not ids or not moments:
            return
        ask = Ask(moments, self.protocol.splits, self.protocol.model)

        def job(cid: int) -> Job:
            return Job(cid, send(r, cid), clients.get(cid))

        for cid, found in self.engine.evaluate(ids, job, ask):
            for at, score in found.items():
                scores.at[prefix + at][cid] = score

    def _score_shared(self, r: Round, scores: Scores) -> None:
        """The global model on every shared test set."""
        tests = [shared_test_id(i) for i in range(len(self.experiment.data.shared_tests))]
        message = Down(r.plan, {METHOD: r.server[METHOD]})
        ask = Ask(("received",), ("test",), "global")
        for cid, found in self.engine.evaluate(tests, lambda i: Job(i, message, None), ask):
            scores.at[f"{SHARED}/{self.protocol.split}"][shared_test_id(cid)] = found[
                "received/test"
            ]
