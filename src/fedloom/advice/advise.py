"""Which method for these data? Looked at, tuned, repeated over seeds, compared, tested once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from fedloom.advice.advice import Advice, Tested, losers
from fedloom.advice.check import Checked, check
from fedloom.advice.evidence import Evidence, Values, weigh
from fedloom.advice.shortlist import LOCAL, Shortlist, shortlist
from fedloom.core.metrics import metric
from fedloom.core.protocol import parse_protocol
from fedloom.data import FederatedData
from fedloom.errors import BadInput
from fedloom.files import file_name, write_json
from fedloom.launch.side_by_side import SideBySide
from fedloom.launch.start import with_settings
from fedloom.record import Chosen, Summary
from fedloom.runs.config import RunConfig, RunSettings
from fedloom.runs.experiment import Model
from fedloom.runs.folder import RunPaths
from fedloom.runs.given import Given
from fedloom.runs.journal import read_record
from fedloom.tuning.budget import seconds_of
from fedloom.tuning.plan import Plan
from fedloom.tuning.result import TuneResult
from fedloom.tuning.search import Search
from fedloom.tuning.store import Store
from fedloom.tuning.trial import advance
from fedloom.tuning.tune import TRIALS
from fedloom.tuning.validation import SHARE, without_tests

BUDGET = "1h"
"""Where nobody says how much."""
SEEDS = 5
RIVALS = 3
"""Methods whose test rows are opened beside the advised one's."""
Note = Callable[[str], None]


@with_settings
def advise(
    data: Any = "digits",
    *,
    methods: Sequence[str] = (),
    trials: int | None = None,
    budget: str | float | None = None,
    seeds: int = SEEDS,
    model: str | Model = "auto",
    note: Note | None = None,
    **settings: Unpack[RunSettings],
) -> Advice:
    """The method that suits the data, with the evidence for it; settings are keys of `RunConfig`.

    Every method of a short list (or of `methods`, beside local, fedavg and fedavg_ft) is tuned with
    at most `trials` points (16), or as many as fit into the `budget` for the whole ("1h" where
    neither is given). The best settings are repeated with `seeds` seeds and compared on validation
    rows; then test rows are opened, once, for the chosen method and its rivals. With `out`, the
    same call once more goes on where it stopped. `note` is told what happens, in sentences.
    """
    if seeds < 2:
        raise BadInput(f"seeds = {seeds}, but a comparison needs at least two")
    if trials is not None and trials < 1:
        raise BadInput(f"trials = {trials}, but at least one is needed")
    if budget is None and trials is None:
        budget = BUDGET
    seconds = None if budget is None else seconds_of(budget)
    tell: Note = note or (lambda sentence: None)
    checked = check(data, model=model, **settings)
    if not checked.good:
        raise BadInput(
            f"a training would fail: {checked.problems[0]}"
            + (f" ({len(checked.problems) - 1} more)" if len(checked.problems) > 1 else "")
            + f"; see fedloom check {checked.data}"
        )
    listed = shortlist(checked, methods, None if isinstance(model, str) else model)
    for candidate in listed.candidates:
        tell(f"{candidate.method} is on the list: {candidate.why}")
    for method, why in listed.left_out:
        tell(f"{method} is not: {why}")
    common: dict[str, Any] = {**settings, "partition": checked.config.partition}
    if isinstance(data, FederatedData):
        common.pop("partition")
    given = [Given(method, data, model) for method in listed.methods]
    with ExitStack() as stack:
        folder = common.get("out") or stack.enter_context(
            TemporaryDirectory(prefix="fedloom-advise-")
        )
        work = _Work(given, {**common, "out": str(Path(folder) / "tuning")}, Path(folder), tell)
        advice = work.advice(checked, listed, seeds, seconds, trials)
    if common.get("out") is not None:
        write_json(Path(str(common["out"])) / "advice.json", advice.as_json())
    return advice


@dataclass
class _Work:
    """The runs of an advice, in one folder."""

    given: list[Given]
    settings: dict[str, Any]
    folder: Path
    note: Note

    def advice(
        self,
        checked: Checked,
        listed: Shortlist,
        seeds: int,
        seconds: float | None,
        trials: int | None,
    ) -> Advice:
        """Tune, repeat, choose, test."""
        plan = Plan.checked(self.given, self.settings, None)
        out = None if checked.config.out is None else str(self.folder)
        whole = self.given[0].build(plan.base.changed(out=None)).data
        assert isinstance(whole, FederatedData)  # the plan refuses data that stays at its sites
        tuning = self._tuned(plan, seeds, seconds, trials)
        best = {tuned.label: tuned.expression for tuned in tuning.methods}
        numbers = range(plan.base.seed + 1, plan.base.seed + 1 + seeds)
        scores = self._validated(plan, whole, best, numbers)
        evidence = weigh(scores, metric(plan.metric), _held_out(whole))
        self.note(f"chosen on validation rows: {evidence.advised}; now test rows are opened, once")
        rivals = _rivals(evidence)
        tested = self._tested(plan, whole, {m: best[m] for m in rivals}, numbers)
        names = whole.client_names
        lost = losers(tested, evidence.advised, names, metric(plan.metric))
        return Advice(
            checked, listed, tuning, evidence, tuple(tested), tuple(lost), plan.metric, out
        )

    def _tuned(
        self, plan: Plan, seeds: int, seconds: float | None, trials: int | None
    ) -> TuneResult:
        """The best settings of every method, with as many trials each."""
        count, methods = trials or TRIALS, len(plan.labels)
        # After the tuning every method is repeated, and a few are tested.
        further = plan.base.rounds * seeds * (1 + min(1.0, (1 + RIVALS) / methods))
        with (
            Store(self.folder / "tuning") as store,
            SideBySide(advance, plan.data, plan.model, plan.base.workers) as runs,
        ):
            search = Search(plan, store, runs, self.note)
            if seconds is not None:
                count = min(count, search.affordable(seconds, further))
            result = search.run(count)
        write_json(self.folder / "tuning" / "tune.json", result.as_json())
        return result

    def _validated(
        self, plan: Plan, whole: FederatedData, best: Mapping[str, str], seeds: range
    ) -> dict[str, list[Values]]:
        """Every method's values on validation rows, client by client, for each seed.

        Where the split has no validation rows, every seed holds out other ones.
        """
        values: dict[str, list[Values]] = {label: [] for label in plan.labels}
        for seed in seeds:
            rows, _ = without_tests(whole, plan.base.partition_seed + seed)
            configs = []
            for place, label in enumerate(plan.labels):
                trial = plan.default(place)
                config = plan.config(place, trial, plan.base.rounds)
                out = self.folder / "validation" / f"{file_name(label)}-seed{seed}"
                configs.append(
                    config.changed(method=best[label], seed=seed, title=label, out=str(out))
                )
            for label, chosen in zip(plan.labels, self._run(configs, rows, plan), strict=True):
                values[label].append({} if chosen is None else chosen.by_client())
        return values

    def _tested(
        self, plan: Plan, whole: FederatedData, best: Mapping[str, str], seeds: range
    ) -> list[Tested]:
        """The advised method and its rivals on test rows; one that breaks down is left out."""
        last = parse_protocol(plan.base.protocol).select == "last"
        configs = [
            plan.base.changed(
                method=expression,
                seed=seed,
                title=label,
                eval_every=plan.base.rounds if last else plan.base.eval_every,
                diagnose=None,
                out=str(self.folder / "test" / f"{file_name(label)}-seed{seed}"),
            )
            for label, expression in best.items()
            for seed in seeds
        ]
        chosen = iter(self._run(configs, whole, plan))
        tested = []
        for label, expression in best.items():
            results = [next(chosen) for _ in seeds]
            whole_results = [result for result in results if result is not None]
            if len(whole_results) == len(results):
                tested.append(Tested.of(label, expression, whole_results))
        return tested

    def _run(
        self, configs: Sequence[RunConfig], data: FederatedData, plan: Plan
    ) -> list[Chosen | None]:
        """The results of runs, side by side; None of one that broke down. Runs that ended before
        are read."""
        results: list[Chosen | None] = [None] * len(configs)
        with SideBySide(advance, data, plan.model, plan.base.workers) as runs:
            for at, outcome in runs.outcomes(configs):
                paths = RunPaths(str(configs[at].out))
                if outcome.score is None:
                    self.note(f"{configs[at].title}, seed {configs[at].seed}: {outcome.why}")
                    continue
                result = read_record(paths.summary, Summary).result
                results[at] = result
                shutil.rmtree(paths.checkpoints, ignore_errors=True)
                self.note(
                    f"{configs[at].title}, seed {configs[at].seed}, {result.at.split} rows:"
                    f" {metric(plan.metric).shown(outcome.score)}"
                )
        return results


def _held_out(data: FederatedData) -> float:
    """How many rows every seed holds out anew for each that it trains on; 0 where the split has
    validation rows."""
    has_validation_rows = data.partition.packed.has("val")
    return 0.0 if has_validation_rows else SHARE / (1 - SHARE)


def _rivals(evidence: Evidence) -> list[str]:
    """The advised method, training alone, and the best of the others."""
    ranked = sorted(evidence.standings, key=lambda one: one.behind)
    known = {one.method for one in evidence.standings}
    first = [evidence.advised, *(m for m in (LOCAL, "fedavg") if m in known)]
    return list(dict.fromkeys([*first, *(one.method for one in ranked)]))[: 1 + RIVALS]
