"""Start a run, go on with one, give one more rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, get_type_hints

from fedloom.core.method import Method
from fedloom.core.task import Task
from fedloom.engines import Engine, make_engine
from fedloom.errors import BadInput
from fedloom.files import naming_disk, write_json
from fedloom.launch.progress import python_bar
from fedloom.record import RoundRecord, Summary
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.config import RunConfig, RunSettings
from fedloom.runs.experiment import Experiment, Model
from fedloom.runs.folder import RunFolder, RunPaths
from fedloom.runs.given import Given, rebuilt
from fedloom.runs.journal import read_record, read_records
from fedloom.runs.privacy_account import check_first_round
from fedloom.runs.result import Result
from fedloom.runs.runner import Runner
from fedloom.runs.stored import check_same_data, difference, read_config, write_data_path
from fedloom.runs.watcher import Watcher

if TYPE_CHECKING:
    from fedloom.diagnose.recorder import Recorder

F = TypeVar("F", bound=Callable[..., Any])


def with_settings(function: F) -> F:
    """Show the keys of `RunConfig` in a function's signature, in place of `**settings`, so that
    `help` and completion know them."""
    signature = inspect.signature(function)
    types = get_type_hints(RunSettings, localns={"Task": Task})
    fixed = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keys = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[name]
        )
        for name, field in RunConfig.model_fields.items()
        if name in RunSettings.__annotations__ and name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*fixed, *keys])  # type: ignore[attr-defined]
    return function


@with_settings
def run(
    method: str | Method = "fedavg",
    data: Any = "digits",
    *,
    model: str | Model = "auto",
    watchers: Sequence[Watcher] = (),
    overwrite: bool = False,
    progress: bool | None = None,
    policy: str | Path | None = None,
    **settings: Unpack[RunSettings],
) -> Result:
    """Train and test one method; settings are the keys of `RunConfig`.

    `data` is a name, a path, a pair of arrays, a `Source`, or a `FederatedData` that is divided
    already. Without `out` nothing is written. `progress` shows a bar, by default in a terminal or
    a notebook. `policy` is a `site.toml`: what its rules refuse for any client is not run.

    >>> run("fedavg", rounds=2, clients=4, partition="iid").summary.rounds
    2
    """
    given = Given(method, data, model)
    experiment = given.build(given.config(settings))
    check_policy(experiment, policy)
    with engine_of(experiment.config) as engine, python_bar(progress) as bar:
        return start(experiment, engine, [*watchers, bar.watcher(given.label)], overwrite)


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
    check_first_round(experiment)  # before there is a folder
    recorder = _recorder(experiment, engine)
    out = experiment.config.out
    if out is None:
        return _finish(Runner(experiment, engine, None, [*recorder, *watchers]), recorder)
    with RunFolder.create(out, overwrite) as folder:
        with naming_disk(folder.path):
            experiment.data.partition.save(folder.partition)
            folder.write_versions()
            write_data_path(experiment.config, folder)
            # Last: a folder with a configuration is a run that can be resumed.
            write_json(folder.config, experiment.config.model_dump())
        return _finish(Runner(experiment, engine, folder, [*recorder, *watchers]), recorder)


def resume(
    path: str | Path,
    *,
    rounds: int | None = None,
    method: Method | None = None,
    data: Any = None,
    model: Model | None = None,
    imports: Sequence[str] = (),
    watchers: Sequence[Watcher] = (),
    progress: bool | None = None,
) -> Result:
    """Go on with a run that stopped, from its newest good checkpoint.

    `rounds` gives a run more of them, also one that has ended: what comes after the last round
    (special rounds, adaptation) is done once, at the new end. All other settings stay. What the
    run was given as Python objects must be given again. `imports` takes the place of files that
    the run imported, where they were moved, or changed on purpose.
    """
    experiment = rebuilt(path, "resume", method, data, model, rounds, imports)
    with engine_of(experiment.config) as engine, python_bar(progress) as bar:
        return go_on(experiment, engine, [*watchers, bar.watcher(str(path))])


def go_on(experiment: Experiment, engine: Engine, watchers: Sequence[Watcher] = ()) -> Result:
    """Restore an experiment from its folder and run what is left."""
    recorder = _recorder(experiment, engine)
    with RunFolder.open(str(experiment.config.out)) as folder:
        check_same_data(experiment, folder)
        _extend(experiment, folder)
        _record_imports(experiment, folder)
        runner = Runner(experiment, engine, folder, [*recorder, *watchers])
        runner.restore()
        return _finish(runner, recorder)


def complete(
    experiment: Experiment, engine: Engine, watchers: Sequence[Watcher], overwrite: bool
) -> Summary:
    """Of a new run, of one that has ended, or of one that stopped and goes on."""
    out = experiment.config.out
    if out is None or overwrite or not RunPaths(out).config.exists():
        return start(experiment, engine, watchers, overwrite).summary
    if other := difference(experiment.config):
        raise BadInput(f"{out} holds {other}; give --overwrite or another --out")
    if RunPaths(out).summary.exists():
        return read_record(RunPaths(out).summary, Summary)
    return go_on(experiment, engine, watchers).summary


def _extend(experiment: Experiment, folder: RunFolder) -> None:
    """Give the run in a folder as many rounds as the experiment has: it goes back to the end of
    its training, and what came after that is done again later."""
    before, rounds = read_config(folder.path), experiment.config.rounds
    if rounds == before.rounds:
        return
    checkpoints = Checkpoints(folder.checkpoints)
    trained = [r.step for r in read_records(folder.metrics, RoundRecord) if r.kind == "train"]
    end = max(trained, default=-1) + 1
    usable = [step for step in checkpoints.steps() if step <= end]
    if rounds < before.rounds:
        raise BadInput(
            f"the run in {folder.path} has {before.rounds} rounds, more than {rounds}; only"
            " further rounds can be added"
        )
    if experiment.protocol.full_last_round and before.participation < 1 and trained:
        raise BadInput(
            f"under protocol {before.protocol!r} everybody takes part in the last round, so the"
            f" run in {folder.path} cannot be given more rounds; start a new one"
        )
    ended = read_record(folder.summary, Summary) if folder.summary.exists() else None
    if ended is not None and ended.privacy is not None and ended.stopped:
        raise BadInput(
            f"the run in {folder.path} ended where it was, because of its budget"
            f" ({ended.stopped}), so it cannot be given more rounds; start a new one"
        )
    if checkpoints.steps() and not usable:
        raise BadInput(
            f"the run in {folder.path} has no checkpoint from before the end of its training, so"
            " it cannot be given more rounds; start a new one"
        )
    # The configuration changes last: until then the run is the old one at the end of training.
    checkpoints.drop_after(end)
    folder.summary.unlink(missing_ok=True)
    write_json(folder.config, before.changed(rounds=rounds).model_dump())


def check_policy(experiment: Experiment, file: str | Path | None) -> None:
    """Refuse an experiment that some client's site would refuse, where all have the policy of this
    file; None: there is none."""
    if file is not None:
        from fedloom.policy.simulation import check_experiment  # here: few runs have one

        check_experiment(experiment, file)


def _record_imports(experiment: Experiment, folder: RunFolder) -> None:
    """Where a run goes on with a file that was moved or changed, its folder says so."""
    before, imports = read_config(folder.path), experiment.config.imports
    if before.imports != imports:
        write_json(folder.config, before.changed(imports=imports).model_dump())


def _recorder(experiment: Experiment, engine: Engine) -> list[Recorder]:
    """The watcher that diagnoses on the way, where that was asked for."""
    names = experiment.config.diagnose
    if names is None:
        return []
    from fedloom.diagnose.recorder import Recorder  # here: most runs are not diagnosed on the way
    from fedloom.diagnose.registry import chosen
    from fedloom.diagnose.snapshots import check_classes

    chosen(names)  # a misspelt name should not cost the rounds before it
    check_classes(experiment)
    if engine.keeps_states:
        raise BadInput(
            "with this engine clients keep their models to themselves, so nothing can be diagnosed"
            " on the way; leave out diagnose, or choose another engine"
        )
    return [Recorder(experiment)]


def _finish(runner: Runner, recorder: Sequence[Recorder]) -> Result:
    summary = runner.run()
    return Result(
        summary,
        runner.records,
        runner.experiment,
        runner.server,
        runner.clients,
        tuple(runner.warnings),
        [finding for one in recorder for finding in one.findings],
        runner.before_last_round,
    )
