"""What is measured when, for a protocol: inside the clients' calls and after a round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from fedloom.core.data import shared_test_id
from fedloom.core.evaluate import Ask
from fedloom.core.message import Down, Plan
from fedloom.core.net import METHOD
from fedloom.core.round import Round, send
from fedloom.core.score import GLOBAL, PERSONAL, ClientScore, Moment
from fedloom.core.tree import State
from fedloom.engines import Engine, Job
from fedloom.record import At, Group, Score
from fedloom.runs.choice import curve_at, result_at
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


class Questions:
    """What the server of an experiment wants measured, and when."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.program, self.protocol = experiment.program, experiment.protocol
        self.splits = experiment.splits
        self._moments = self._moments_of_members()
        self.last_round = experiment.config.rounds
        """Is always scored; an earlier one where the training is stopped."""

    def inside(self, plan: Plan) -> Ask | None:
        """What to measure in a client's call, where the trained model is at hand anyway."""
        if self.protocol.model == "global":
            return None
        if plan.kind == "adapt":
            return self.ask_clients(("final",))
        if plan.kind == "train" and "trained" in self._moments and self.is_due(plan):
            return self.ask_clients(("trained",))
        return None

    @property
    def afterwards(self) -> tuple[Moment, ...]:
        """Moments that are measured after a round, under what the server made of it."""
        return tuple(sorted(self._moments - {"trained", "final"}))

    @property
    def model(self) -> Literal["personal", "global"]:
        """Whose scores are asked for."""
        return "global" if self.protocol.model == "global" else "personal"

    def ask_clients(self, moments: tuple[Moment, ...]) -> Ask:
        """About these moments, of clients that train."""
        return Ask(moments, self.splits, self.model, self.protocol.on == "shared")

    def is_due(self, plan: Plan) -> bool:
        """Is this one of the rounds that are scored?"""
        return plan.t % self.experiment.config.eval_every == 0 or plan.t == self.last_round

    def _moments_of_members(self) -> set[Moment]:
        if self.protocol.model == "global":
            return {"received"}
        curve = curve_at(self.protocol).moment
        if self.protocol.clients == "new":
            return {curve, *self.protocol.also}
        return {curve, result_at(self.protocol).moment, *self.protocol.also}


class Evaluator(Questions):
    """Measures one experiment on one engine; changes nothing."""

    def __init__(self, experiment: Experiment, engine: Engine) -> None:
        super().__init__(experiment)
        self.engine = engine

    def enter(self, cid: int, scores: Iterable[ClientScore], sheet: ScoreSheet) -> None:
        """Take what was measured at a client that trains, inside its call or after the round; of
        clients that work against the run, nothing."""
        if cid in self.program.hostile_clients:
            return
        for score in scores:
            on_shared = self.protocol.on == "shared" and score.split == "test"
            sheet.add(cid, [score], "clients on shared tests" if on_shared else "clients")

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
        plan = done.plan
        if not last and not (plan.kind == "train" and self.is_due(plan)):
            return
        now = Round(self.program, plan, server)
        if plan.kind != "adapt":  # which makes the final models, scored inside, and no other
            self._score_members(now, done, present, clients, sheet)
        if last and self.experiment.config.newcomers and self.protocol.on == "clients":
            joining = range(self.program.clients, len(self.experiment.data))
            moments: tuple[Moment, ...] = ("received", "adapted")
            if self.model == "global":
                moments = ("received",)
            ask = Ask(moments, self.splits, self.model)
            for cid, scores in self._scores(now, joining, ask, clients):
                sheet.add(cid, scores, "newcomers")

    def _score_members(
        self,
        now: Round,
        done: Round,
        present: list[int],
        clients: Mapping[int, State],
        sheet: ScoreSheet,
    ) -> None:
        answered = list(done.ups)
        ids = answered if self.protocol.clients == "cohort" else present
        moments = self.afterwards
        if self.protocol.model == "global" and self.protocol.on == "shared":
            self._score_shared_tests(now, sheet)
            splits = tuple(split for split in self.splits if split == "val")
            ask = Ask(moments, splits, "global")
        else:
            ask = self.ask_clients(moments)
        self._score(now, ids, ask, clients, sheet)
        if done.plan.kind == "train" and self._everybody_trains:
            # From what this round sent, as the participants: `now` holds what they made of it.
            absent = sorted(set(present) - set(answered))
            self._score(done, absent, self.ask_clients(("trained",)), clients, sheet)

    @property
    def _everybody_trains(self) -> bool:
        """Are those who were not in the round trained too, on copies, for the result?"""
        return self.protocol.moment == "trained" and self.protocol.clients == "all"

    def _score(
        self,
        r: Round,
        ids: Sequence[int],
        ask: Ask,
        clients: Mapping[int, State],
        sheet: ScoreSheet,
    ) -> None:
        for cid, scores in self._scores(r, ids, ask, clients):
            self.enter(cid, scores, sheet)

    def _scores(
        self, r: Round, ids: Sequence[int], ask: Ask, clients: Mapping[int, State]
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        """Scores under the server's state of `r`, with what the clients keep."""
        if not ids or not ask.moments or not ask.splits:
            return iter(())

        def job(cid: int) -> Job:
            # A global model is the server's, whatever a method would send to this client.
            own = clients.get(cid)
            down = self._global_model(r) if ask.model == "global" else send(r, cid, own)
            return Job(cid, down, own)

        return self.engine.evaluate(ids, job, ask)

    def _global_model(self, r: Round) -> Down:
        return Down(r.plan, {METHOD: r.server[METHOD]})

    def _score_shared_tests(self, r: Round, sheet: ScoreSheet) -> None:
        """The global model on every shared test set."""
        tests = [shared_test_id(i) for i in range(len(self.experiment.data.shared_tests))]
        ask = Ask(("received",), ("test",), "global")
        for cid, scores in self._scores(r, tests, ask, {}):
            sheet.add(shared_test_id(cid), scores, "shared tests")
