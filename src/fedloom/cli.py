"""The command line: `fedloom list | show | partition | run | compare | tune | resume`, data before
a run (`check | advise`), what a run left (`report | diagnose | ledger | verify`), its models in use
(`export | predict | serve`), a newcomer's (`adapt`), `fedloom reproduce`, `fedloom new`, `fedloom
deploy`, `fedloom audit`, `fedloom purge` and `fedloom dossier`.

Flags of a run are the keys of `RunConfig`. Whatever needs torch is imported inside a command, so
that help is quick.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from fedloom.collector import importing
from fedloom.deploy.cli import Imports, deploy_app
from fedloom.deploy.operations.audit_cli import audit_app
from fedloom.deploy.operations.cli import dossier, purge
from fedloom.errors import (
    BadInput,
    CheckpointError,
    DiskError,
    FedloomError,
    HookError,
    OutOfMemory,
    RunFolderError,
    TooFewClients,
    WorkerLost,
    naming_lack_of_memory,
    suggestion,
)
from fedloom.extensions import load_extensions
from fedloom.launch import forking
from fedloom.model_commands import adapt, export, predict, serve
from fedloom.runs.config import RunConfig
from fedloom.scaffold.command import new
from fedloom.signals import NOTHING_DONE, STOPPED, stops_as_ctrl_c

if TYPE_CHECKING:
    from click import Context

    from fedloom.launch.progress import Bar
    from fedloom.loggers import Logger
    from fedloom.report.live import Live
    from fedloom.reproduce.format import PaperTable
    from fedloom.reproduce.measure import Measurement


class Program(TyperGroup):
    """All commands; Typer would end one that Ctrl-C stops without a word."""

    def invoke(self, ctx: Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _end_stopped()


app = typer.Typer(
    name="fedloom",
    cls=Program,
    help="Personalized federated learning in representation space.\n\n"
    "To begin: `fedloom list`, then `fedloom run --method fedper --rounds 20`.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # Click does
    pretty_exceptions_enable=False,
)
app.add_typer(deploy_app)
app.add_typer(audit_app)
app.command()(purge)
app.command()(dossier)
app.command()(new)
app.command()(export)
app.command()(predict)
app.command()(serve)
app.command()(adapt)
out = Console()
err = Console(stderr=True)


@dataclass
class BeforeCommand:
    """Options before the command, which `main` needs when the command has failed."""

    debug: bool = False
    failure: int = 1
    """Exit status of an error for the user; `verify` means something else by 1."""
    stopped: str = NOTHING_DONE
    """What Ctrl-C is answered with where no run goes on (`_stoppable`)."""


before_command = BeforeCommand()
BEGINS_LATE = ("run", "compare", "tune", "advise", "resume", "reproduce")
"""Commands that do nothing but read and import before `_stoppable`."""

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the same keys.")]
Json = Annotated[bool, typer.Option("--json", help="Last line of stdout: the summary as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", help="A site.toml: run only what its rules permit every client."),
]
Profile = Annotated[bool, typer.Option("--profile", help="Print where the time went.")]
Log = Annotated[
    str | None,
    typer.Option(help="tensorboard, wandb (offline), mlflow, or several: a,b.", metavar="NAMES"),
]
LivePage = Annotated[bool, typer.Option("--live", help="Serve the report while the run goes on.")]
LivePort = Annotated[
    int, typer.Option(help="Of --live, on 127.0.0.1; 0 is any free one.", min=0, max=65535)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="What the flags say, e.g. clients=8."),
]

PANELS = {
    "Data": "data label client domain inputs task partition clients split shift augment"
    " normalize image_size encoder partition_seed newcomers",
    "Method and training": "method model start start_without rounds participation epochs steps"
    " batch_size lr optimizer momentum weight_decay beta1 beta2 eps keep_state clip decay drop_last"
    " replacement server_optimizer server_lr server_beta1 server_beta2 server_tau aggregation"
    " secure_aggregation compression hostile privacy seed",
    "Evaluation": "protocol metrics eval_every early_stop diagnose diagnose_every",
    "Where it runs": "engine workers ray_address min_clients device memory checkpoint_every"
    " history out title",
}
DIVIDING = (
    *("imports", "data", "label", "client", "domain", "inputs", "partition", "clients", "split"),
    *("task", "shift", "normalize", "image_size"),
)
"""The keys that decide a partition, beside its seed."""


def settings(*leave_out: str, only: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command one flag per key of `RunConfig`, collected in its argument `flags`."""
    names = [k for k in RunConfig.model_fields if k not in leave_out and (not only or k in only)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(**arguments: Any) -> Any:
            flags = {k: arguments.pop(k) for k in names}
            return command(**arguments, flags=flags)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in own if p.name != "flags"]
        parameters += [_flag(name) for name in names]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapped

    return decorate


def _flag(name: str) -> inspect.Parameter:
    field = RunConfig.model_fields[name]
    kinds = {"int": int, "float": float, "bool": bool}
    written = str(field.annotation).replace("<class '", "").replace("'>", "").split(" | ")[0]
    kind: Any = kinds.get(written, str)
    default = "" if field.default is None else f" (default: {field.default})"
    panel = next((title for title, keys in PANELS.items() if name in keys.split()), None)
    help_text = f"{field.description or ''}{default}"
    option = typer.Option(help=help_text, show_default=False, rich_help_panel=panel)
    # The key is a list, its flag a single file that may be repeated.
    annotation = Imports if name == "imports" else Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"fedloom {version('fedloom')}")
        raise typer.Exit


@app.callback()
def program(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="FEDLOOM_DEBUG", help="Print the traceback of an error."),
    ] = False,
) -> None:
    """Options before the command."""
    before_command.debug, before_command.failure = debug, 1
    late = context.invoked_subcommand in BEGINS_LATE
    before_command.stopped = NOTHING_DONE if late else "stopped"


@app.command("run")
@settings()
def run_command(
    overrides: Overrides = None,
    *,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    policy: PolicyFile = None,
    profile: Profile = False,
    log: Log = None,
    live: LivePage = False,
    live_port: LivePort = 0,
    flags: dict[str, Any],
) -> None:
    """Train and test one method, in a run folder that can be resumed."""
    chosen = RunConfig.read(config, overrides or (), flags)
    with importing():
        from fedloom.launch.start import check_policy, engine_of, start
        from fedloom.launch.terminal import profile_table, summary_table
        from fedloom.runs.experiment import Experiment

    chosen = chosen if chosen.out else chosen.changed(out=_new_folder(chosen.method))
    with (
        _stoppable(str(chosen.out), log=log, new=True),
        _loggers(log) as loggers,
        _live(str(chosen.out), live, live_port) as pages,
        _bar(quiet) as bar,
        engine_of(chosen) as engine,
    ):
        watchers = [*loggers, bar.watcher(chosen.method), *pages]
        experiment = Experiment.build(chosen)
        check_policy(experiment, policy)
        result = start(experiment, engine, watchers, overwrite)
    _show(None if quiet or as_json else summary_table(result))
    _show(profile_table(result.summary) if profile and not as_json else None)
    _print_json(result.summary, as_json)


@app.command("compare")
@settings("method", "seed")
def compare_command(
    methods: Annotated[list[str], typer.Argument(help="Expressions; key=value are overrides.")],
    *,
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...", min=1)] = 3,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    policy: PolicyFile = None,
    log: Log = None,
    flags: dict[str, Any],
) -> None:
    """Compare methods under one budget over several seeds.

    --workers whole runs go side by side where that is quicker (engines inline and vectorized,
    without --log). The same command once more goes on where it stopped.
    """
    overrides = [m for m in methods if _is_override(m)]
    names = [m for m in methods if m not in overrides]
    chosen = RunConfig.read(config, overrides, flags)
    if chosen.runs_at_a_time > 1 and log is None:
        forking.begin()
    with importing():
        from fedloom.launch.compare import compare
        from fedloom.launch.terminal import comparison_table

    folder = chosen.out or _new_folder("compare")
    common = chosen.changed(out=folder).model_dump(exclude={"method", "data", "seed", "model"})
    again = "the same command" if chosen.out else f"the same command with --out {folder}"
    with _stoppable(folder, again=again), _loggers(log) as loggers:
        comparison = compare(
            names,
            chosen.data,
            seeds=range(seeds),
            model=chosen.model,
            watch=(lambda label, over: loggers) if loggers else None,
            overwrite=overwrite,
            progress=not quiet,
            policy=policy,
            **common,
        )
    _show(None if quiet or as_json else comparison_table(comparison))
    if not quiet and not as_json:
        print(f"runs: {folder}")
    _print_json({**comparison.as_json(), "run": folder}, as_json)


@app.command("tune")
@settings("method")
def tune_command(
    methods: Annotated[list[str], typer.Argument(help="Expressions; key=value are overrides.")],
    *,
    trials: Annotated[int | None, typer.Option(help="Of each method (default: 16).", min=1)] = None,
    budget: Annotated[
        str | None, typer.Option(help="In place of trials: 30m, 1h30m for all.", metavar="TIME")
    ] = None,
    confirm: Annotated[
        int, typer.Option(help="Further seeds that the last trials are trained with.", min=0)
    ] = 0,
    lr_range: Annotated[
        str | None,
        typer.Option(
            help="Of the learning rate, e.g. 1e-3..1 (default: the methods').", metavar="LOW..HIGH"
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    flags: dict[str, Any],
) -> None:
    """Search hyper-parameters by successive halving, on validation rows only.

    Every method gets as many trials, --workers of them side by side. What an expression writes
    stays as it is; the learning rate and what the method declares is searched. With --out, the same
    command once more goes on where it stopped.
    """
    overrides = [m for m in methods if _is_override(m)]
    names = [m for m in methods if m not in overrides]
    chosen = RunConfig.read(config, overrides, flags)
    if chosen.runs_at_a_time > 1:
        forking.begin()
    with importing():
        from fedloom.tuning.terminal import best_table, trials_table
        from fedloom.tuning.tune import rates, tune

    folder = chosen.out or _new_folder("tune")
    common = chosen.changed(out=folder).model_dump(exclude={"method", "data", "model"})
    with _stoppable(folder, again=f"the same command with --out {folder}"):
        result = tune(
            names,
            chosen.data,
            trials=trials,
            budget=budget,
            confirm=confirm,
            lr_range=None if lr_range is None else rates(lr_range),
            model=chosen.model,
            note=None if quiet else _note,
            **common,
        )
    if not quiet and not as_json:
        for tuned in result.methods:
            out.print(trials_table(tuned, result.rungs))
        out.print(best_table(result))
        for tuned in result.methods:
            print(tuned.command)
        if len(result.methods) > 1:
            print(f"all of them: {result.command}")
        print(f"trials: {folder}")
    _print_json({**result.as_json(), "run": folder}, as_json)


@app.command("check")
@settings(only=tuple(key for key in (*DIVIDING, "partition_seed", "encoder") if key != "data"))
def check_command(
    data: Annotated[str, typer.Argument(help="A path to your own data, or a known name.")],
    overrides: Overrides = None,
    *,
    group: Annotated[
        str | None,
        typer.Option(help="Column whose rows must not be trained and tested on, e.g. patient."),
    ] = None,
    as_json: Json = False,
    flags: dict[str, Any],
) -> None:
    """Look at data before anything is trained: clients, skew, duplicates, leaks, what is missing.

    Exit status 1: there is something that a training would fail on.
    """
    chosen = RunConfig.read(None, overrides or (), {**flags, "data": data})
    with importing():
        from fedloom.advice.check import check
        from fedloom.advice.terminal import check_page

    checked = check(data, group=group, **_written(chosen))
    _show(None if as_json else check_page(checked))
    _print_json(checked.as_json(), as_json)
    if not checked.good:
        raise typer.Exit(1)


@app.command("advise")
@settings("method", "data")
def advise_command(
    data: Annotated[str, typer.Argument(help="A path to your own data, or a known name.")],
    overrides: Overrides = None,
    *,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="In place of the short list; may be repeated."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="For the whole: 30m, 1h30m (default: 1h without --trials).", metavar="TIME"
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="At most, of each method (default: 16).", min=1)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each method's best settings.", min=2)] = 5,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    flags: dict[str, Any],
) -> None:
    """Which method for these data? Tunes a short list, compares it fairly, and says who would lose.

    Everything is decided on validation rows; test rows are opened once, at the end. The same
    command once more with --out goes on where it stopped.
    """
    chosen = RunConfig.read(config, overrides or (), {**flags, "data": data})
    with importing():
        from fedloom.advice.advise import advise
        from fedloom.advice.terminal import advice_page

    folder = chosen.out or _new_folder("advise")
    with _stoppable(folder, again=f"the same command with --out {folder}"):
        advice = advise(
            data,
            methods=methods or (),
            trials=trials,
            budget=budget,
            seeds=seeds,
            model=chosen.model,
            note=None if quiet else _note,
            **{**_written(chosen), "out": folder},
        )
    _show(None if quiet or as_json else advice_page(advice))
    if not quiet and not as_json:
        print(f"Train with:\n{advice.command}")  # in one line, whatever the terminal's width
        print(f"runs and advice.json: {folder}")
    _print_json({**advice.as_json(), "run": folder}, as_json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def resume(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    *,
    rounds: Annotated[
        int | None, typer.Option(help="Give the run more rounds, also one that has ended.", min=1)
    ] = None,
    imports: Imports = None,
    as_json: Json = False,
    quiet: Quiet = False,
    log: Log = None,
) -> None:
    """Go on with a run that stopped; the result is that of an undisturbed run."""
    _refuse_settings(context.args)
    with importing():
        from fedloom.launch.start import resume as go_on
        from fedloom.launch.terminal import summary_table

    with _stoppable(str(run), log=log), _loggers(log) as loggers, _bar(quiet) as bar:
        result = go_on(
            run,
            rounds=rounds,
            imports=imports or (),
            watchers=[*loggers, bar.watcher(str(run))],
            progress=False,
        )
    for warning in result.warnings:
        _note(warning)
    _show(None if quiet or as_json else summary_table(result))
    _print_json(result.summary, as_json)


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of comparisons.")],
    *,
    to: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    target: Annotated[
        list[float] | None,
        typer.Option(help="Accuracy to count rounds and megabytes to, e.g. 0.8; may be repeated."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Write the table of methods and seeds here, too.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Write that table for a paper here, too.")
    ] = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """One self-contained HTML page: tables with tests, curves, clients, diagnostics."""
    load_extensions(imports or ())
    with importing():
        from fedloom.report.page import report

    path = report(runs, to, targets=target or (), csv=csv, latex=latex)
    if not as_json:
        print(f"saved {path}")
    tables = {"csv": csv, "latex": latex}
    also = {key: str(file) for key, file in tables.items() if file is not None}
    _print_json({"saved": str(path), "bytes": path.stat().st_size, **also}, as_json)


@app.command()
@settings(only=DIVIDING)
def partition(
    overrides: Overrides = None,
    *,
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder for partition.json and partition.svg.")
    ] = None,
    as_json: Json = False,
    flags: dict[str, Any],
) -> None:
    """Divide a data set; print and save the table of clients and classes and a bubble plot."""
    _check_keys(overrides or (), DIVIDING)
    chosen = RunConfig.read(None, overrides or (), {**flags, "partition_seed": seed}).imported()
    with importing():
        from fedloom.data.picture import bubble_svg
        from fedloom.files import write_atomic
        from fedloom.launch.terminal import partition_table
        from fedloom.runs.experiment import federated

    data = federated(chosen)
    record = {"clients": len(data), "fingerprint": data.partition.fingerprint}
    if to is not None:
        _make_folder(to)
        data.partition.save(to / "partition.json")
        write_atomic(to / "partition.svg", bubble_svg(data))
        record["saved"] = str(to)
    if not as_json:
        out.print(partition_table(data, out))
        out.print(f"fingerprint {data.partition.fingerprint[:16]}")
        if to is not None:
            print(f"saved {to / 'partition.json'}, {to / 'partition.svg'}")
    _print_json(record, as_json)


@app.command("list")
def list_command(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, models, tasks, data, partitions, splits, shifts, augmentations,"
            " aggregation, secure_aggregation, compression, privacy, hostile, protocols or engines."
        ),
    ] = "methods",
    *,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """What there is: methods and terms, models, data, partitions, protocols and more."""
    load_extensions(imports or ())
    with importing():
        from fedloom.catalogue import catalogue, catalogue_table

    entries = catalogue(kind)
    _show(None if as_json else catalogue_table(kind, entries, out.width))
    _print_json({kind: entries}, as_json)


@app.command()
def ledger(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    *,
    as_json: Json = False,
) -> None:
    """What left which client in which round: names, shapes and bytes."""
    from fedloom.launch.terminal import ledger_tables
    from fedloom.runs.folder import RunPaths
    from fedloom.runs.ledger import Account

    paths = RunPaths(run)
    if paths.ledger.exists():
        paths.check_format()
    account = Account.read(paths.ledger)
    for table in [] if as_json else ledger_tables(account):
        out.print(table)
    _print_json(account.as_json(), as_json)


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="The run folder; nothing is written there.")],
    *,
    sample: Annotated[
        float, typer.Option(help="Share of the answers and server steps to compute again.")
    ] = 0.05,
    seed: Annotated[
        int | None, typer.Option(help="Of the draw, to repeat it; by default a fresh one.")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help="Draw from these rounds only: 1-10,15.", metavar="NUMBERS")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(help="Draw from these clients only: 0-4,9.", metavar="NUMBERS")
    ] = None,
    engine: Annotated[str, typer.Option(help=RunConfig.model_fields["engine"].description)] = (
        "inline"
    ),
    workers: Annotated[int, typer.Option(help="Processes of the pool.", min=1)] = 2,
    imports: Imports = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a run yourself: its records against each other, and a random sample computed again.

    Says at what odds a change would have been caught. Exit status 0: all agrees, 1: something is
    not as recorded, 2: it cannot be checked, or nothing of it could be computed again.
    """
    before_command.failure = 2
    with importing():
        from fedloom.verification.check import verify as verify_run
        from fedloom.verification.terminal import numbers, verdict, verification_table

    result = verify_run(
        run,
        sample=sample,
        seed=seed,
        rounds=numbers(rounds, "rounds"),
        clients=numbers(clients, "clients"),
        engine=engine,
        workers=workers,
        imports=imports or (),
        note=(lambda text: None) if quiet else _note,
    )
    if not quiet and not as_json:
        out.print(verification_table(result))
        out.print(verdict(result))
    _print_json(result.as_json(), as_json)
    if not result.good:
        raise typer.Exit(1)
    if result.odds is None:  # records that fit together are easily made
        raise typer.Exit(before_command.failure)


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    *,
    only: Annotated[
        str | None, typer.Option(help="mdl,cka,... (default: all).", metavar="NAMES")
    ] = None,
    rows: Annotated[int, typer.Option(help="Most rows of a data set.", min=2)] = 500,
    clients: Annotated[int, typer.Option(help="How many clients to look at.", min=1)] = 8,
    estimator: Annotated[str, typer.Option(help="Of the MDL: online or reprieve.")] = "online",
    probe: Annotated[str, typer.Option(help="Of the MDL: ridge or mlp (slow).")] = "ridge",
    imports: Imports = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Representations, bias and calibration of a run's models, before and after local training.

    Looks at the newest checkpoint and writes diagnostics.jsonl in the run folder.
    """
    with importing():
        from fedloom.diagnose.measure import Options
        from fedloom.diagnose.recorder import diagnose as diagnose_run
        from fedloom.diagnose.terminal import Steps, findings_table
        from fedloom.record import dump

    options = Options(estimator, probe)
    with Steps(err, quiet) as steps:
        findings, warnings = diagnose_run(
            run,
            only,
            rows=rows,
            clients=clients,
            imports=imports or (),
            options=options,
            progress=steps.begin,
        )
    for warning in warnings:
        _note(warning)
    _show(None if quiet or as_json else findings_table(findings))
    _print_json({"run": str(run), "findings": list(map(dump, findings))}, as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `fedloom list [KIND]`.")],
    *,
    imports: Imports = None,
) -> None:
    """What a name means: of a method algorithm, hyper-parameters, deviations, traffic and cost."""
    load_extensions(imports or ())
    with importing():
        from fedloom.catalogue import page

    out.print(page(name, out.width), markup=False, highlight=False, soft_wrap=True)


@app.command()
def reproduce(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="fedpac/table1, a whole paper (fedpac), or a table's TOML file."),
    ] = None,
    *,
    imports: Imports = None,
    list_them: Annotated[bool, typer.Option("--list", help="Which tables there are.")] = False,
    show_printed: Annotated[
        bool,
        typer.Option("--show", help="What the paper prints, or the table has; nothing is run."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only read and check the files.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the page of all published results here.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Two rounds of every cell on small generated data.")
    ] = False,
    column: Annotated[
        str | None, typer.Option(help="Only these columns: a,b.", metavar="NAMES")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these rows: fedpac,fedrep.", metavar="NAMES")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="In place of the table's: 0,1.", metavar="NUMBERS")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="In place of the paper's, for a try.", min=1)
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="The folder of the runs.")] = Path(
        "runs/reproduce"
    ),
    publish: Annotated[
        bool, typer.Option("--publish", help="Write the results beside the table's file, too.")
    ] = False,
    engine: Annotated[str, typer.Option(help=RunConfig.model_fields["engine"].description)] = (
        "inline"
    ),
    workers: Annotated[int, typer.Option(help="Processes of the pool.", min=1)] = 2,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps ...")] = "cpu",
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a table of the papers, and print the paper's numbers beside what was measured.

    TABLES are fedpac/table1, a whole paper (fedpac), or a table's TOML file; --list names them. The
    same command once more goes on where it stopped.
    """
    if not (tables or list_them or check or page or dry_run):
        raise BadInput("name a table, for instance fedpac/table1; --list names all of them")
    with importing():
        from fedloom.reproduce.library import all_tables, find_tables, tables_folder
        from fedloom.reproduce.measure import Choice, Measurement

    choice = Choice.written(column, methods, seeds, rounds)
    if (list_them or check or page or dry_run) and choice != Choice():
        raise BadInput(
            "--column, --methods, --seeds and --rounds choose what is run or shown; leave them out"
            " beside --list, --check, --page and --dry-run, which are about whole tables"
        )
    recorded = load_extensions(imports or ())
    files = find_tables(tables) if tables else all_tables(tables_folder())
    if check:
        _check_tables(files)
        return
    from fedloom.reproduce.format import read_table

    papers = [read_table(file) for file in files]
    if list_them:
        _list_tables(papers, as_json)
    elif page is not None:
        from fedloom.reproduce.page import write_page

        write_page(papers, page)
    elif dry_run:
        _dry_run(papers)
    elif show_printed:
        for paper in papers:
            measurement = Measurement(paper, choice, to)
            _show_printed(measurement)
            _show_estimate(measurement)
    else:
        how = {"engine": engine, "workers": workers, "device": device, "imports": recorded}
        for paper in papers:
            measurement = Measurement(paper, choice, to, how, publish, overwrite, note=_note)
            _measure(measurement, quiet, as_json)


def _check_tables(files: Sequence[Path]) -> None:
    """Print what is wrong with the papers' tables."""
    from fedloom.reproduce.format import check_file

    wrong = [sentence for file in files for sentence in check_file(file)]
    for sentence in wrong:
        print(sentence)
    if wrong:
        raise BadInput(f"{len(wrong)} problems in {len(files)} tables; correct the files")
    print(f"{len(files)} tables are in order")


def _show_printed(measurement: Measurement) -> None:
    """What the paper prints in the chosen columns and rows, and what it leaves open."""
    from fedloom.reproduce.terminal import printed_tables, remark

    paper, choice = measurement.table, measurement.choice
    choice.check_names(paper)
    columns, rows = choice.columns or tuple(paper.columns), choice.rows or tuple(paper.rows)
    printed = printed_tables(paper, columns, rows, out.width)
    for table in printed:
        out.print(table)
    if not printed:
        _show_contents(measurement, columns, rows)
    out.print(Text(remark(paper)), end="")


def _show_contents(measurement: Measurement, columns: Sequence[str], rows: Sequence[str]) -> None:
    """A table without printed numbers: what it runs, and what was measured of it."""
    from fedloom.reproduce.comparison import lines
    from fedloom.reproduce.contents import contents, heading, remarks

    paper = measurement.table
    measured = lines(paper, measurement.results, columns, rows)
    out.print(Text(heading(paper)))
    out.print("no number of it is printed; this is what it runs:")
    for table in contents(paper, columns, rows, measured):
        out.print(table)
    if not measured:
        out.print(Text(f"none of it was measured yet in {measurement.folder}"))
    for sentence in remarks(paper, columns, rows, measured):
        out.print(Text(sentence))


def _show_estimate(measurement: Measurement) -> None:
    """How long the rest of a table takes, where runs of it have ended here."""
    estimate = measurement.estimate
    if estimate.seconds and estimate.left:
        out.print(Text(f"{measurement.table.id}: {estimate.sentence()}"))


def _list_tables(papers: Sequence[PaperTable], as_json: bool) -> None:
    """Which tables of the papers there are."""
    from fedloom.reproduce.terminal import entry, list_table

    _show(None if as_json else list_table(papers))
    _print_json({"tables": list(map(entry, papers))}, as_json)


def _dry_run(papers: Sequence[PaperTable]) -> None:
    """Play two rounds of every cell, and print what does not work."""
    from fedloom.reproduce.dry_run import DryRuns

    dry_runs, wrong, cells = DryRuns(), 0, 0
    for paper in papers:
        sentences = list(dry_runs.play(paper))
        for sentence in sentences:
            print(sentence)
        wrong, cells = wrong + len(sentences), cells + len(paper.cells())
    if wrong:
        raise BadInput(f"{wrong} of {cells} cells do not work; correct their settings")
    print(f"all {cells} cells work ({dry_runs.runs} different small runs)")


def _measure(measurement: Measurement, quiet: bool, as_json: bool) -> None:
    """Run what is left of a paper's table, and print it beside the paper's numbers."""
    from fedloom.reproduce.comparison import lines, spreads
    from fedloom.reproduce.terminal import comparison_tables

    table, choice = measurement.table, measurement.choice
    if shorter := choice.shorter_than(table):
        _note(shorter)
    with (
        _stoppable(str(measurement.folder), again="the same command"),
        _bar(quiet, runs=measurement.runs) as bar,
    ):
        results = measurement.run(lambda label, over: [bar.watcher(label, over)])
    compared = lines(table, results, choice.columns, choice.rows)
    if not quiet and not as_json:
        for side_by_side in comparison_tables(table, compared):
            out.print(side_by_side)
        for spread in spreads(table, results):
            out.print(Text(f"tolerance in {spread.sentence}"))
        print(f"runs: {measurement.folder}")
    _print_json(results, as_json)


def main() -> None:
    """Entry point: errors for the user are one sentence, with a traceback only if asked for."""
    if "--debug" in sys.argv:  # wherever it stands; click wants it before the command
        sys.argv = [sys.argv[0], "--debug", *(word for word in sys.argv[1:] if word != "--debug")]
    try:
        with naming_lack_of_memory("fedloom"):
            _program_for(sys.argv[1:])()
    except FedloomError as e:
        if before_command.debug:
            traceback.print_exc()
        if "--json" in sys.argv:
            print(json.dumps({"error": str(e)}))
        hidden = isinstance(e, HookError) and not before_command.debug
        sentence = f"fedloom: {_printable(str(e))}" + (
            "; give --debug for the traceback" if hidden else ""
        )
        if isinstance(e, OutOfMemory):  # colours would take more of it
            print(sentence, file=sys.stderr)
        else:
            err.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(before_command.failure)
    except KeyboardInterrupt:  # before there is a command
        _end_stopped()


def _program_for(words: Sequence[str]) -> typer.Typer:
    """The program with no other command than the one these words name: Typer makes every flag of
    every command there is."""
    asked = next((word for word in words if not word.startswith("-")), None)
    named = [command for command in app.registered_commands if _command_name(command) == asked]
    if not named:  # help, a group of commands, or no command at all
        return app
    alone = copy(app)
    alone.registered_commands, alone.registered_groups = named, []
    return alone


def _command_name(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__


def _printable(text: str) -> str:
    """Without control characters, by which a stranger's file could give orders to the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


@contextmanager
def _bar(quiet: bool, runs: int = 1) -> Iterator[Bar]:
    from fedloom.launch.progress import Bar

    with Bar(err, runs, shown=not quiet) as bar:
        yield bar


@contextmanager
def _loggers(names: str | None) -> Iterator[list[Logger]]:
    """Loggers by name, closed also where a run fails."""
    if names is None:
        yield []
        return
    from fedloom.loggers import make_logger

    with ExitStack() as stack:
        yield [stack.enter_context(make_logger(name.strip())) for name in names.split(",")]


@contextmanager
def _live(folder: str, wanted: bool, port: int) -> Iterator[list[Live]]:
    """The page of a run that goes on; at its end the report is left in the run's folder."""
    if not wanted:
        yield []
        return
    from fedloom.report.live import serving

    with serving(folder, port) as page:
        _note(f"live report: {page.address}")
        yield [page]
        _note(f"report: {page.write()}")


@contextmanager
def _stoppable(
    folder: str, again: str = "", log: str | None = None, new: bool = False
) -> Iterator[None]:
    """On Ctrl-C, a signal to end or a breakdown from outside, say how to go on: with a command
    `again`, or by resuming the run. A run that is there already is not the `new` one."""
    several = bool(again)
    again = again or f"fedloom resume {folder}" + (f" --log {log}" if log else "")
    earlier = _configured(Path(folder)) if new else None
    try:
        with stops_as_ctrl_c():
            yield
    except KeyboardInterrupt:
        _note(_kept(Path(folder), again, several, earlier))
        sys.exit(STOPPED)
    except (WorkerLost, TooFewClients, CheckpointError, DiskError, OutOfMemory) as e:
        raise type(e)(f"{e}; to go on: {again}") from None
    before_command.stopped = "stopped; what is done is saved"


def _kept(folder: Path, again: str, several: bool, earlier: int | None) -> str:
    """What a stopped command leaves in its folder, of one run or of several, and how it goes on."""
    begun = folder.exists() if several else _configured(folder) not in (None, earlier)
    if not begun:
        return NOTHING_DONE
    journal = folder / "metrics.jsonl"
    if not several and (not journal.exists() or not journal.stat().st_size):
        return f"stopped; no round was done yet; begin again with: {again}"
    return f"stopped; what is done is saved; go on with: {again}"


def _configured(run: Path) -> int | None:
    """When the run in a folder was begun; None: there is none."""
    try:
        return (run / "config.json").stat().st_mtime_ns
    except OSError:
        return None


def _end_stopped() -> NoReturn:
    _note(before_command.stopped)
    sys.exit(STOPPED)


def _note(text: str) -> None:
    err.print(f"fedloom: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _written(config: RunConfig) -> dict[str, Any]:
    """The keys that somebody wrote; what nobody wrote may follow from the data."""
    written: dict[str, Any] = config.model_dump(
        include=config.model_fields_set, exclude={"method", "data", "model"}
    )
    return written


def _check_keys(overrides: Iterable[str], known: tuple[str, ...]) -> None:
    """Refuse an override that would change nothing here."""
    for text in overrides:
        key = text.partition("=")[0].strip().replace("-", "_")
        if "=" in text and key not in known:
            seed = "; its seed is --seed" if "seed" in key else suggestion(key, known)
            raise BadInput(f"a partition has no key {key!r}{seed}")


def _refuse_settings(arguments: Iterable[str]) -> None:
    """A run that goes on keeps its settings; whoever gives others should hear which cannot be."""
    for text in arguments:
        key = text.partition("=")[0].lstrip("-").replace("-", "_")
        if key in RunConfig.model_fields:
            raise BadInput(
                f"a run that is resumed keeps its {key}; only --rounds can be given anew, so leave"
                f" {key} out, or start a new run"
            )
        raise BadInput(f"resume takes no {text!r}; see fedloom resume --help")


def _make_folder(path: Path) -> None:
    if (path / "config.json").exists():
        raise RunFolderError(f"{path} holds a run, whose partition stays; pick another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise BadInput(f"cannot make the folder {path} ({e.strerror}); pick another --out") from e


def _is_override(text: str) -> bool:
    key = text.partition("=")[0].strip().replace("-", "_")
    return "=" in text and key.isidentifier()


def _new_folder(label: str) -> str:
    """runs/<time>-<label>, which is not there yet."""
    import time

    from fedloom.files import file_name

    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{file_name(label)}"
    tries = (base if i == 0 else base.with_name(f"{base.name}-{i}") for i in range(10_000))
    return str(next(path for path in tries if not path.exists()))


def _show(table: Any) -> None:
    if table is not None:
        out.print(table)


def _print_json(value: Any, wanted: bool) -> None:
    """A record, or plain values, as the last line."""
    if wanted:
        from fedloom.files import jsonable
        from fedloom.record import dump

        plain = dump(value) if is_dataclass(value) else value
        print(json.dumps(jsonable(plain)), flush=True)


if __name__ == "__main__":
    main()
