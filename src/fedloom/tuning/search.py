"""Successive halving over the trials of all methods, rung by rung, from wherever it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedloom.core.metrics import metric
from fedloom.durations import duration
from fedloom.files import file_name
from fedloom.launch.side_by_side import SideBySide
from fedloom.runs.folder import RunPaths
from fedloom.tuning.budget import trials_within
from fedloom.tuning.halving import rungs, survivors
from fedloom.tuning.plan import Plan
from fedloom.tuning.points import points
from fedloom.tuning.result import Tuned, TuneResult
from fedloom.tuning.store import Store, Study
from fedloom.tuning.trial import Outcome


@dataclass(frozen=True)
class Search:
    """Successive halving over all methods, rung by rung."""

    plan: Plan
    store: Store
    runs: SideBySide[Outcome]
    note: Callable[[str], None]

    @cached_property
    def studies(self) -> list[Study]:
        """One for each method."""
        plan = self.plan
        return [
            Study(self.store, label, plan.identity(place), metric(plan.metric).higher_is_better)
            for place, label in enumerate(plan.labels)
        ]

    def affordable(self, seconds: float, further: float = 0, confirm: int = 0) -> int:
        """How many trials of every method fit into a time, by a first round of each, with `further`
        rounds of each after the tuning; where the folder has methods already, as many as these
        have."""
        before = self.store.trials_per_method()
        if before is not None:
            return before
        plan = self.plan
        configs = [
            plan.config(place, plan.default(place), 1, self._folder(place, 0))
            for place in range(len(plan.labels))
        ]
        per_round = [outcome.round_seconds for _, outcome in self.runs.outcomes(configs)]
        base = plan.base
        count = trials_within(seconds, per_round, base.rounds, base.workers, further, confirm)
        self.note(
            f"a round takes {duration(sum(per_round))} for all {len(configs)} methods together, so"
            f" {count} trials of each fit into {duration(seconds)}"
        )
        return count

    def run(self, trials: int, confirm: int = 0) -> TuneResult:
        """All trials, as far as they go; those that come to the end train with further seeds."""
        plan = self.plan
        self._enter(trials)
        steps = rungs(trials, plan.base.rounds)
        self.note(
            f"{trials} trials of each method, compared after {', '.join(map(str, steps))} rounds;"
            f" {plan.validation}"
        )
        for before, rung in zip([0, *steps], steps, strict=False):
            self._climb(rung)
            self._cut(before, rung)
        self._complete()
        seeds = range(plan.base.seed + 1, plan.base.seed + 1 + confirm)
        self._confirm(seeds)
        tuned = [
            Tuned(
                label,
                [trial.judged_by(seeds) for trial in study.trials()],
                {name: str(where) for name, where in space.ranges.items()},
                plan.base,
                plan.metric,
            )
            for label, study, space in zip(plan.labels, self.studies, plan.spaces, strict=True)
        ]
        return TuneResult(tuned, trials, confirm, steps, plan.validation, plan.base, plan.base.out)

    def _enter(self, count: int) -> None:
        for place, study in enumerate(self.studies):
            space = self.plan.spaces[place]
            drawn = points(space.ranges, count - 1, self.plan.base.seed) if space.ranges else []
            everything = [space.default, *drawn]
            study.fill(
                count,
                [self.plan.trial(place, n, values) for n, values in enumerate(everything)],
                space.ranges,
            )

    def _climb(self, rung: int) -> None:
        """Bring every trial that is left to a rung."""
        due = [
            (place, trial)
            for place, study in enumerate(self.studies)
            for trial in study.trials()
            if not trial.ended and rung not in trial.scores
        ]
        configs = [
            self.plan.config(place, trial, rung, self._folder(place, trial.number))
            for place, trial in due
        ]
        for at, outcome in self.runs.outcomes(configs):
            place, trial = due[at]
            self.studies[place].report(trial.number, rung, outcome)
            told = self._told(outcome)
            self.note(f"{trial.expression}, trial {trial.number}, {rung} rounds: {told}")

    def _cut(self, before: int, rung: int) -> None:
        """End the trials that do not go on, after all have reached a rung from the one before. Of
        a tuning that was stopped meanwhile it comes to the same."""
        if rung == self.plan.base.rounds:
            return
        for study in self.studies:
            trials = study.trials()
            scores = {
                trial.number: trial.scores.get(rung)
                for trial in trials
                if rung in trial.scores or (trial.why and trial.rounds == before)
            }
            going_on = survivors(scores, metric(self.plan.metric).sign)
            for number in scores:
                if not trials[number].ended and number not in going_on:
                    study.prune(number)
        self._tidy()

    def _complete(self) -> None:
        for study in self.studies:
            for trial in study.trials():
                if not trial.ended:
                    study.complete(trial.number, trial.scores[self.plan.base.rounds])
        self._tidy()

    def _confirm(self, seeds: Sequence[int]) -> None:
        """Train the trials of the last rung with further seeds, where there are several."""
        plan, rounds = self.plan, self.plan.base.rounds
        due = []
        for place, study in enumerate(self.studies):
            last = [trial for trial in study.trials() if rounds in trial.scores]
            if len(last) > 1:
                due += [(place, t, seed) for t in last for seed in seeds if seed not in t.confirmed]
        configs = [
            plan.config(place, trial, rounds, self._folder(place, trial.number, seed), seed)
            for place, trial, seed in due
        ]
        for at, outcome in self.runs.outcomes(configs):
            place, trial, seed = due[at]
            self.studies[place].confirm(trial.number, seed, outcome)
            self.note(
                f"{trial.expression}, trial {trial.number}, seed {seed}: {self._told(outcome)}"
            )
            self._tidy()

    def _told(self, outcome: Outcome) -> str:
        score = outcome.score
        return outcome.why if score is None else metric(self.plan.metric).shown(score)

    def _tidy(self) -> None:
        """States of trials that have ended, and of their further seeds, take space and are of no
        use; also those that a kill kept from being dropped."""
        for place, study in enumerate(self.studies):
            for trial in study.trials():
                for seed in (None, *trial.confirmed) if trial.ended else ():
                    paths = RunPaths(self._folder(place, trial.number, seed))
                    shutil.rmtree(paths.checkpoints, ignore_errors=True)

    def _folder(self, place: int, number: int, seed: int | None = None) -> Path:
        """Of a trial, or of the same with a further seed."""
        name = f"trial-{number:03d}" + ("" if seed is None else f"-seed-{seed}")
        return self.store.folder / file_name(self.plan.labels[place]) / name
