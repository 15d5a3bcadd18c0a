"""Search the hyper-parameters of methods, each with as many trials, on validation rows only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from fedloom.core.method import Method
from fedloom.core.tunable import Log
from fedloom.errors import BadInput
from fedloom.files import write_json
from fedloom.launch.side_by_side import SideBySide
from fedloom.launch.start import with_settings
from fedloom.runs.config import RunSettings
from fedloom.runs.experiment import Model
from fedloom.runs.given import Given
from fedloom.tuning.budget import seconds_of
from fedloom.tuning.plan import Plan
from fedloom.tuning.result import TuneResult
from fedloom.tuning.search import Search
from fedloom.tuning.store import Store
from fedloom.tuning.trial import advance

TRIALS = 16
"""Of each method, where nobody says otherwise."""


@with_settings
def tune(
    methods: Sequence[str | Method],
    data: Any = "digits",
    *,
    trials: int | None = None,
    budget: str | float | None = None,
    confirm: int = 0,
    lr_range: tuple[float, float] | None = None,
    model: str | Model = "auto",
    note: Callable[[str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> TuneResult:
    """The best hyper-parameters of every method, by successive halving on validation rows.

    `trials` (16) of each method, or as many as fit into a `budget` such as "30m" for all of them.
    With `confirm`, those that come to the end are trained with so many further seeds, and the best
    is best on average. `workers` trials run side by side; the result does not depend on how many.
    Settings are the keys of `RunConfig`; `rounds` are those of the run to tune for. With `out`,
    trials that ended in an earlier, interrupted tuning are not run again; without, no folder is
    left. `note` is told what happens, in sentences.

    >>> tuned = tune(["fedavg"], trials=1, rounds=1, clients=4, partition="iid", workers=1)
    >>> tuned.methods[0].expression
    'fedavg(lr=0.05)'
    """
    if trials is not None and budget is not None:
        raise BadInput("trials and budget both say how much is tried; give one of them")
    if trials is not None and trials < 1:
        raise BadInput(f"trials = {trials}, but at least one is needed")
    if confirm < 0:
        raise BadInput(f"confirm = {confirm}, but a number of further seeds is 0 or more")
    seconds = None if budget is None else seconds_of(budget)
    lr = None if lr_range is None else Log(*lr_range)
    given = [Given(method, data, model) for method in methods]
    plan = Plan.checked(given, dict(settings), lr)
    with ExitStack() as stack:
        folder = plan.base.out or stack.enter_context(TemporaryDirectory(prefix="fedloom-tune-"))
        store = stack.enter_context(Store(Path(folder)))
        runs = stack.enter_context(SideBySide(advance, plan.data, plan.model, plan.base.workers))
        search = Search(plan, store, runs, note or (lambda sentence: None))
        count = trials or TRIALS
        if seconds is not None:
            count = search.affordable(seconds, confirm=confirm)
        result = search.run(count, confirm)
    if plan.base.out is not None:
        write_json(Path(plan.base.out) / "tune.json", result.as_json())
    return result


def rates(text: str) -> tuple[float, float]:
    """A range as the command line writes it.

    >>> rates("1e-3..1")
    (0.001, 1.0)
    """
    low, _, high = text.partition("..")
    try:
        return float(low), float(high)
    except ValueError:
        raise BadInput(f"lr_range = {text!r} is no range; write for instance 1e-3..1") from None
