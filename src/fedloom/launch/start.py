"""Start a run, go on with one, and hold what came out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.core.method import Method
from fedloom.core.tree import State
from fedloom.data import FederatedData, load
from fedloom.diagnose.finding import chosen
from fedloom.engines import Engine, make_engine
from fedloom.errors import BadInput, RunFolderError
from fedloom.files import write_json
from fedloom.methods import describe
from fedloom.runs.checkpoint import Checkpoints, Snapshot
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import OBJECT, Experiment, Model
from fedloom.runs.folder import RunFolder, RunPaths
from fedloom.runs.runner import Runner
from fedloom.runs.scores import Record
from fedloom.runs.store import ClientStates
from fedloom.runs.watcher import Watcher


@dataclass(frozen=True)
class Result:
    """A run that ended: its summary, its journal, and every state."""

    summary: Record
    records: list[Record]
    experiment: Experiment
    server: State
    clients: Mapping[int, State]
    warnings: tuple[str, ...] = ()
    diagnostics: Sequence[Record] = ()
    """What `diagnose` recorded on the way."""

    @property
    def accuracy(self) -> float:
        """The number of the run, as its protocol defines it."""
        return float(self.summary["accuracy"])


@dataclass(frozen=True)
class Given:
    """What a caller hands over: expressions for the configuration, objects beside it."""

    method: str | Method
    data: Any
    model: str | Model

    @property
    def label(self) -> str:
        """The method as it was written."""
        return self.method if isinstance(self.method, str) else describe(self.method)

    def config(self, settings: Mapping[str, Any]) -> RunConfig:
        """The configuration, with a placeholder for what has no expression."""
        data = self.data if isinstance(self.data, str) else OBJECT
        model = self.model if isinstance(self.model, str) else OBJECT
        return RunConfig.checked({**settings, "method": self.label, "data": data, "model": model})

    def build(self, config: RunConfig) -> Experiment:
        """The experiment of a configuration and these objects."""
        data = None if isinstance(self.data, str) else self.data
        if data is not None and not isinstance(data, FederatedData):
            data = load(data, normalize=config.normalization, image_size=config.image_size)
        return Experiment.build(
            config,
            None if isinstance(self.method, str) else self.method,
            data,
            None if isinstance(self.model, str) else self.model,
        )


def run(
    method: str | Method = "fedavg",
    data: Any = "digits",
    *,
    model: str | Model = "auto",
    watchers: Sequence[Watcher] = (),
    overwrite: bool = False,
    **settings: Any,
) -> Result:
    """Train and test one method; settings are the keys of `RunConfig`.

    `data` is a name, a path, a pair of arrays, a `Source`, or a `FederatedData` that is divided
    already. Without `out` nothing is written.

    >>> run("fedavg", rounds=2, clients=4, partition="iid").summary["rounds"]
    2
    """
    given = Given(method, data, model)
    experiment = given.build(given.config(settings))
    with engine_of(experiment.config) as engine:
        return start(experiment, engine, watchers, overwrite)


@contextmanager
def engine_of(config: RunConfig) -> Iterator[Engine]:
    """The configured engine, closed at the end."""
    engine = make_engine(
        config.engine,
        config.workers,
        config.device,
        ray_address=config.ray_address,
    )
    try:
        yield engine
    finally:
        engine.close()


def start(
    experiment: Experiment,
    engine: Engine,
    watchers: Sequence[Watcher] = (),
    overwrite: bool = False,
) -> Result:
    """Run an experiment from the beginning, in its folder if it has one."""
    _check_diagnosable(experiment, engine)
    out = experiment.config.out
    if out is None:
        return _finish(Runner(experiment, engine, None, watchers))
    with RunFolder.create(out, overwrite) as folder:
        experiment.data.partition.save(folder.partition)
        folder.write_versions()
        # Last: a folder with a configuration is a run that can be resumed.
        write_json(folder.config, experiment.config.model_dump())
        return _finish(Runner(experiment, engine, folder, watchers))


def resume(
    path: str | Path,
    *,
    method: Method | None = None,
    data: Any = None,
    model: Model | None = None,
    watchers: Sequence[Watcher] = (),
) -> Result:
    """Go on with a run that stopped, from its newest good checkpoint.

    What the run was given as Python objects must be given again.
    """
    experiment = _rebuilt(path, "resume", method, data, model)
    with engine_of(experiment.config) as engine:
        return go_on(experiment, engine, watchers)


def go_on(experiment: Experiment, engine: Engine, watchers: Sequence[Watcher] = ()) -> Result:
    """Restore an experiment from its folder and run what is left."""
    _check_diagnosable(experiment, engine)
    with RunFolder.open(str(experiment.config.out)) as folder:
        _check_same_data(experiment, folder)
        runner = Runner(experiment, engine, folder, watchers)
        runner.restore()
        return _finish(runner)


def stopped_at(
    path: str | Path, *, method: Method | None = None, data: Any = None, model: Model | None = None
) -> tuple[Experiment, Snapshot, list[str]]:
    """A run's experiment, its newest good checkpoint, and a sentence for every damaged one."""
    experiment = _rebuilt(path, "diagnose.Snapshots.of", method, data, model)
    paths = RunPaths(path)
    _check_same_data(experiment, paths)
    states = ClientStates(int(experiment.config.memory * 2**20))
    return experiment, *Checkpoints(paths.checkpoints).load_latest(states)


def _rebuilt(
    path: str | Path, call: str, method: Method | None, data: Any, model: Model | None
) -> Experiment:
    config = read_config(path)
    for key, again in (("data", data), ("model", model)):
        if getattr(config, key) == OBJECT and again is None:
            raise BadInput(
                f"the run in {path} was given its {key} as a Python object; give it again"
                f" from Python: fedloom.{call}({str(path)!r}, {key}=...)"
            )
    given = Given(method or config.method, data or config.data, model or config.model)
    # A folder that was moved is resumed where it is now.
    return given.build(config.changed(out=str(path)))


def read_config(path: str | Path) -> RunConfig:
    """The configuration of a run folder."""
    file = RunPaths(path).config
    try:
        return RunConfig.checked(json.loads(file.read_text(encoding="utf-8")))
    except OSError:
        raise RunFolderError(
            f"there is no run in {path}: it has no {file.name}; check the path"
        ) from None
    except ValueError as e:
        raise RunFolderError(f"{file} is not valid JSON ({e}); restore it") from None


def difference(config: RunConfig) -> str:
    """How the run that is in a configuration's folder differs from it; empty: not at all."""
    there, asked = read_config(str(config.out)).model_dump(), config.model_dump()
    other = [key for key in asked if asked[key] != there[key]]
    return f"a run with {other[0]} = {there[other[0]]!r}, not {asked[other[0]]!r}" if other else ""


def _check_diagnosable(experiment: Experiment, engine: Engine) -> None:
    if experiment.config.diagnose is None:
        return
    chosen(experiment.config.diagnose)  # a misspelt name should not cost the rounds before it
    if engine.keeps_states:
        raise BadInput(
            "with this engine clients keep their models to themselves, so nothing can be diagnosed"
            " on the way; leave out diagnose, or choose another engine"
        )


def _check_same_data(experiment: Experiment, folder: RunPaths) -> None:
    if not folder.partition.is_file():
        raise RunFolderError(f"{folder.path} lacks {folder.partition.name}; start the run again")
    now = experiment.data.partition
    saved = type(now).load(folder.partition)
    for what, is_now, was in (
        ("data", now.source, saved.source),
        ("partition", now.fingerprint, saved.fingerprint),
    ):
        if is_now != was:
            raise BadInput(
                f"the {what} of the run in {folder.path} changed (fingerprint {is_now[:12]}, was"
                f" {was[:12]}); restore the data or start a new run"
            )


def _finish(runner: Runner) -> Result:
    summary = runner.run()
    return Result(
        summary,
        runner.records,
        runner.experiment,
        runner.server,
        runner.clients,
        tuple(runner.warnings),
        runner.diagnostics,
    )
