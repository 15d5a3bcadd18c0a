"""Verify a run: its records against each other, and a random sample of it computed again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedloom.core.message import Plan
from fedloom.core.method import Method
from fedloom.core.threads import one_thread
from fedloom.errors import BadInput, CheckpointError, RunFolderError
from fedloom.launch.start import engine_of
from fedloom.plain_text import plain
from fedloom.record import load
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.given import rebuilt
from fedloom.runs.runner import Progress, cut_plans, stored_early_end
from fedloom.runs.store import ClientStates
from fedloom.runs.stored import check_same_data
from fedloom.verification.attendance import Attendance, remark_on_missing
from fedloom.verification.draw import Drawn, Lottery, seconds, steps_on_the_way
from fedloom.verification.findings import SUBJECTS, Subject, Tally, Verification
from fedloom.verification.records import (
    RunRecords,
    check_checkpoints,
    check_links,
    check_result,
)
from fedloom.verification.replay import Replay
from fedloom.verification.trials import data_of_trial


def verify(
    path: str | Path,
    *,
    sample: float = 0.05,
    seed: int | None = None,
    rounds: Collection[int] | None = None,
    clients: Collection[int] | None = None,
    engine: str = "inline",
    workers: int = 2,
    method: Method | None = None,
    data: Any = None,
    model: Model | None = None,
    imports: Sequence[str] = (),
    note: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Check a run folder, in which nothing is written.

    All records are compared with each other, and at least the share `sample` of the clients'
    answers and of the server's steps is computed again from the kept checkpoints; `rounds` and
    `clients` restrict what is drawn from. Without a `seed` the draw cannot be foreseen. What the
    run was given as Python objects must be given again. `note` hears what is about to be computed.
    """
    if not 0 < sample <= 1:
        raise BadInput(f"sample = {sample} is no share of a run; choose more than 0, at most 1")
    run, tally = RunRecords.read(path), Tally()
    chosen_seed = secrets.randbits(32) if seed is None else seed
    remarks = [*_data_elsewhere(run), *_early_end(run), *_further_scores(run)]
    experiment = None
    if not run.data_is_elsewhere:
        seen = data_of_trial(run, data, imports)
        experiment = rebuilt(path, "verify", method, seen, model, imports=imports)
        check_same_data(experiment, run.paths)
    versions = run.other_versions()
    for name, (was, now) in versions.items():
        note(f"the run was computed with {name} {was}, here it is {now}: bytes may honestly differ")
    with one_thread():
        plans = [] if experiment is None else _plans(run, experiment)
        check_links(run, experiment, tally)
        check_result(run, experiment, plans, tally)
        begins = check_checkpoints(run, tally)
        odds = None
        attendance = [] if experiment is None else _attendance(run, experiment, plans, tally)
        remarks += remark_on_missing(attendance)
        if experiment is not None and attendance:
            steps = None if rounds is None else _steps(run, rounds)
            lottery = Lottery(run.answered, begins, sample, steps, clients)
            odds = lottery.odds()
            drawn = lottery.draw(chosen_seed)
            note(_announced(run, drawn, begins))
            config = experiment.config.changed(engine=engine, workers=workers)
            with engine_of(config) as computing:
                computing.open(experiment.program, experiment.data)
                replay = Replay(run, experiment, plans, attendance, computing, tally)
                _compute(replay, drawn)
    return Verification(
        run=str(path),
        digest=run.digests[-1].link,
        recorded=_recorded(run),
        checked={subject: tally.checked[subject] for subject in SUBJECTS},
        differences=tuple(tally.differences),
        odds=odds,
        seed=chosen_seed,
        versions=versions,
        remarks=tuple(remarks),
    )


def _data_elsewhere(run: RunRecords) -> list[str]:
    """Why nothing of a deployment can be computed again."""
    if not run.data_is_elsewhere:
        return []
    return [
        "the data is at the sites, so no answer can be computed again here; the chain says what"
        " the server recorded, and each site has its own records"
    ]


def _early_end(run: RunRecords) -> list[str]:
    """That a run is shorter than its settings say: its own word, which cannot be checked."""
    if run.summary is None or run.summary.stopped is None:
        return []
    return [
        f"the training was ended early, after {run.summary.rounds} of {run.config.rounds} rounds"
        f" ({plain(run.summary.stopped)}); whether it had to end there is not checked"
    ]


def _further_scores(run: RunRecords) -> list[str]:
    """Which rounds have scores that the settings do not ask for. They are measured again as all
    others, but a run that reports its best round gains by every one of them."""
    every = run.config.eval_every
    trained = [record for record in run.steps if record.kind == "train"]
    further = [record.round for record in trained[:-1] if record.scores and record.round % every]
    if not further:
        return []
    return [
        f"rounds that eval_every = {every} leaves out were scored, as in a run that was given more"
        f" rounds: {', '.join(map(str, further))}"
    ]


def _attendance(
    run: RunRecords, experiment: Experiment, plans: Sequence[Plan], tally: Tally
) -> list[Attendance]:
    """Who was there in every step. Empty where the steps of the journal, or who was asked in them,
    are not those of the settings: then nothing can be computed again."""
    steps: list[Attendance] = []
    for step, record in enumerate(run.steps):
        where, plan = run.where(step), plans[step] if step < len(plans) else None
        recorded = (record.round, record.kind, record.owner)
        if plan is None or (plan.t, plan.kind, plan.owner) != recorded:
            wrong = {"the settings of the run have no such step in this place": True}
            tally.compare("links", where, wrong)
            return []
        participation = experiment.config.participation
        there = Attendance.of(record, experiment.program, plan, participation)
        if there is None:
            wrong = {"who was asked is not who is drawn with this seed": True}
            tally.compare("links", where, wrong)
            return []
        steps.append(there)
    return steps if len(run.journal) == len(run.digests) else []


def _plans(run: RunRecords, experiment: Experiment) -> list[Plan]:
    """What the run did, cut short where its newest checkpoint says that it was ended early."""
    checkpoints = Checkpoints(run.paths.checkpoints)
    plans = experiment.plans
    for step in checkpoints.steps()[:1]:
        try:
            snapshot = checkpoints.load(step, ClientStates(0))
            progress = load(Progress, snapshot.extra, f"the newest checkpoint of {run.paths.path}")
        except (CheckpointError, RunFolderError):
            break
        if early_end := stored_early_end(experiment, progress):
            plans = cut_plans(experiment, early_end)
    return plans


def _steps(run: RunRecords, rounds: Collection[int]) -> list[int]:
    """The steps of these rounds."""
    steps = [step for step, record in enumerate(run.steps) if record.round in rounds]
    if not steps:
        last = max(record.round for record in run.steps)
        raise BadInput(f"the run in {run.paths.path} has none of these rounds; its last is {last}")
    return steps


def _announced(run: RunRecords, drawn: Drawn, begins: Collection[int]) -> str:
    """What is about to be computed, and how long that took when the run was made."""
    took = seconds(drawn, {r.step: r.seconds for r in run.steps}, run.answered)
    alone = f" and {len(drawn.answers)} single answers" if drawn.answers else ""
    few = "" if begins else "; no earlier checkpoint is kept, so it begins with round 1"
    return (
        f"computing {steps_on_the_way(drawn)} of {len(run.steps)} steps{alone} again, which took"
        f" {took:.0f} s in the run{few}"
    )


def _compute(replay: Replay, drawn: Drawn) -> None:
    for steps in drawn.stretches:
        replay.stretch(steps)
    for step, answers in groupby(drawn.answers, key=lambda answer: answer[0]):
        replay.alone(step, [client for _, client in answers])


def _recorded(run: RunRecords) -> dict[Subject, int]:
    return {
        "links": len(run.digests),
        "checkpoints": len(set(Checkpoints(run.paths.checkpoints).steps())),
        "answers": sum(map(len, run.answered)),
        "server steps": len(run.digests),
        "scores": sum(len(score.clients) for record in run.steps for score in record.scores),
        "result": int(run.summary is not None),
    }
