"""What is tuned, on which data, and the runs that trials are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fedloom.core.protocol import parse_protocol
from fedloom.core.tunable import Log
from fedloom.data import FederatedData
from fedloom.engines import ALONE
from fedloom.errors import BadInput
from fedloom.files import jsonable
from fedloom.launch import forking
from fedloom.launch.compare import check_methods
from fedloom.methods import describe
from fedloom.runs.choice import metric_of
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.given import Given
from fedloom.tuning.result import Trial
from fedloom.tuning.space import Space
from fedloom.tuning.validation import on_validation_rows, without_tests


@dataclass(frozen=True)
class Plan:
    """What is tuned, on which data: everything that could be refused has been looked at."""

    base: RunConfig
    """Of the runs that are tuned for."""
    labels: list[str]
    spaces: list[Space]
    data: FederatedData
    """Without test rows."""
    validation: str
    model: Model | None
    metric: str = "accuracy"
    """What the scores of trials are."""

    @classmethod
    def checked(cls, given: list[Given], settings: dict[str, Any], lr: Log | None) -> Self:
        """Of methods in a run; what the final run or a trial would refuse is refused now."""
        if not given:
            raise BadInput("name at least one method to tune")
        base = given[0].config(settings).imported()
        if base.engine not in ALONE:
            raise BadInput(
                f"trials run side by side in processes of their own, each on one core; engine ="
                f" {base.engine!r} will not do, choose {' or '.join(ALONE)}"
            )
        check_methods(given)
        if base.runs_at_a_time > 1:
            forking.begin()
        data = given[0].data
        name = "accuracy"
        for one in given:
            experiment = replace(one, data=data).build(one.config(settings).changed(out=None))
            data, name = experiment.data, metric_of(experiment.protocol)
        if not isinstance(data, FederatedData):
            raise BadInput("data that stays at its sites cannot be tuned on; use a copy of it here")
        seen, validation = without_tests(data, base.partition_seed)
        spaces = [Space.of(one.method, base, lr) for one in given]
        model = None if isinstance(given[0].model, str) else given[0].model
        plan = cls(base, [one.label for one in given], spaces, seen, validation, model, name)
        for place in range(len(given)):
            Experiment.build(
                plan.config(place, plan.default(place), base.rounds), None, seen, model
            )
        return plan

    def default(self, place: int) -> Trial:
        """Trial 0 of a method."""
        return self.trial(place, 0, self.spaces[place].default)

    def trial(self, place: int, number: int, settings: Mapping[str, Any]) -> Trial:
        """A trial of a method that has not begun."""
        space = self.spaces[place]
        return Trial(number, describe(space.at(settings)), settings)

    def config(
        self,
        place: int,
        trial: Trial,
        rounds: int,
        out: Path | None = None,
        seed: int | None = None,
    ) -> RunConfig:
        """The run of a trial up to a rung. Where the last round is the result, only the rounds
        at which trials are compared are scored."""
        protocol = on_validation_rows(parse_protocol(self.base.protocol))
        only_last = protocol.select == "last"
        return self.base.changed(
            method=trial.expression,
            protocol=protocol,
            eval_every=self.base.rounds if only_last else self.base.eval_every,
            early_stop=None,
            diagnose=None,
            rounds=rounds,
            seed=self.base.seed if seed is None else seed,
            title=f"{self.labels[place]}, trial {trial.number}",
            out=None if out is None else str(out),
        )

    def identity(self, place: int) -> dict[str, Any]:
        """What decides a method's trials and their scores, but for how many there are."""
        ways = {
            *("out", "workers", "engine", "memory", "checkpoint_every", "history"),
            *("method", "title"),
        }
        ranges = {name: str(where) for name, where in self.spaces[place].ranges.items()}
        rows = self.data.partition.fingerprint
        run = self.base.model_dump(exclude=ways)
        return dict(jsonable({**run, "rows": rows, "tuned": ranges}))
