"""A run that ended, opened again from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.core.method import Method
from fedloom.core.round import initial_server
from fedloom.data import Partition, RemoteData
from fedloom.errors import CheckpointError, RunFolderError
from fedloom.record import Finding, RoundRecord, Summary
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.folder import RunPaths
from fedloom.runs.given import rebuilt
from fedloom.runs.journal import read_record, read_records
from fedloom.runs.result import Result
from fedloom.runs.states import States
from fedloom.runs.store import ClientStates
from fedloom.runs.stored import newest_states, read_config


def open(
    path: str | Path,
    *,
    method: Method | None = None,
    data: Any = None,
    model: Model | None = None,
    imports: Sequence[str] = (),
) -> Result:
    """What `run` returned, from the run's folder, where nothing is written.

    What the run was given as Python objects must be given again. `imports` takes the place of files
    that the run imported, where they were moved, or changed on purpose.

    >>> from tempfile import TemporaryDirectory
    >>> from fedloom.launch.start import run
    >>> with TemporaryDirectory() as folder:
    ...     ended = run("fedper", rounds=1, clients=3, partition="iid", out=f"{folder}/run")
    ...     open(f"{folder}/run").client("2").card.name
    '2'
    """
    paths = RunPaths(path)
    sites = _at_the_sites(paths) if data is None else data
    experiment = rebuilt(path, "open", method, sites, model, imports=imports)
    if not paths.summary.exists():
        raise RunFolderError(f"the run in {path} has not ended; go on with: fedloom resume {path}")
    states, warnings = newest_states(experiment, paths)
    records = read_records(paths.metrics, RoundRecord)
    findings = read_records(paths.diagnostics, Finding) if paths.diagnostics.exists() else []
    return Result(
        read_record(paths.summary, Summary),
        records,
        experiment,
        states.server,
        states.clients,
        tuple(warnings),
        findings,
        _before_last_round(experiment, paths, records),
    )


def _at_the_sites(paths: RunPaths) -> RemoteData | None:
    """What the server of a deployment knew of its sites' data, if the run is of one."""
    if read_config(paths.path).engine != "flower" or not paths.partition.is_file():
        return None
    return RemoteData.of(Partition.load(paths.partition))


def _before_last_round(
    experiment: Experiment, paths: RunPaths, records: Sequence[RoundRecord]
) -> States | None:
    """From the checkpoint before the last training round, which is kept where it is needed."""
    if experiment.protocol.moment != "trained":
        return None
    step = max((record.step for record in records if record.kind == "train"), default=0)
    if step == 0:
        return States(initial_server(experiment.program), {})
    clients = ClientStates(int(experiment.config.memory * 2**20))
    try:
        return States(Checkpoints(paths.checkpoints).load(step, clients).server, clients)
    except CheckpointError:
        return None
