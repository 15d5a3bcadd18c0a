"""One trial, one rung: a run in its own folder that is given more rounds while it is good."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.data import FederatedData
from fedloom.errors import BadInput, HookError, TrainingError
from fedloom.launch.start import engine_of, go_on, start
from fedloom.record import Summary
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_record
from fedloom.runs.stored import read_config
from fedloom.runs.watcher import Watcher


@dataclass(frozen=True)
class Outcome:
    """What a trial came to at a rung."""

    score: float | None
    """The protocol's number on validation rows; None: the training broke down."""
    why: str
    """Why there is no score, in a sentence."""
    cpu_seconds: float
    """Of this process, for this rung."""
    round_seconds: float
    """What a round takes, over all rounds so far."""


def advance(
    config: RunConfig, data: FederatedData, model: Model | None, watchers: Sequence[Watcher] = ()
) -> Outcome:
    """Bring the run in the configuration's folder to its number of rounds: from the beginning, from
    where it was stopped, or from an earlier rung."""
    begun = time.process_time()
    try:
        summary = _reached(Experiment.build(config, None, data, model), watchers)
    except (TrainingError, HookError, BadInput) as e:
        return Outcome(None, str(e), time.process_time() - begun, 0.0)
    return Outcome(
        summary.result.value,
        "",
        time.process_time() - begun,
        summary.seconds / summary.rounds,
    )


def _reached(experiment: Experiment, watchers: Sequence[Watcher]) -> Summary:
    paths, rounds = RunPaths(str(experiment.config.out)), experiment.config.rounds
    begun = paths.config.exists()
    if begun and paths.summary.exists() and read_config(paths.path).rounds == rounds:
        return read_record(paths.summary, Summary)
    with engine_of(experiment.config) as engine:
        proceed = go_on if begun else start
        return proceed(experiment, engine, watchers).summary
