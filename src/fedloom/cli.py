"""The command line: `fedloom list | show | partition | run | compare | resume`.

Flags of a run are the keys of `RunConfig`. Whatever needs torch is imported inside a command, so
that help is quick.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedloom.errors import FedloomError
from fedloom.runs.config import RunConfig

if TYPE_CHECKING:
    from fedloom.runs.progress import Bar

app = typer.Typer(
    name="fedloom",
    help="Personalized federated learning in representation space.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

Config = Annotated[Path | None, typer.Option("--config", help="TOML file with the same keys.")]
Json = Annotated[bool, typer.Option("--json", help="Last line of stdout: the summary as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, e.g. rounds=20.")
]


def settings(*leave_out: str, only: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Give a command one flag per key of `RunConfig`, collected in its argument `flags`."""
    names = [k for k in RunConfig.model_fields if k not in leave_out and (not only or k in only)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            flags = {k: given.pop(k) for k in names}
            return command(**given, flags=flags)

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
    default = "" if field.default is None else f" [default: {field.default}]"
    option = typer.Option(help=f"{field.description or ''}{default}".strip(), show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


@app.command("run")
@settings()
def run_command(
    overrides: Overrides = None,
    *,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    flags: dict[str, Any],
) -> None:
    """Train and test one method, in a run folder that can be resumed."""
    chosen = RunConfig.read(config, overrides or (), flags)
    from fedloom.runs.experiment import Experiment
    from fedloom.runs.launch import engine_of, start
    from fedloom.runs.progress import summary_table

    chosen = chosen if chosen.out else chosen.changed(out=_new_folder(chosen.method))
    experiment = Experiment.build(chosen)
    with _bar(quiet) as bar, engine_of(chosen) as engine, _resumable(chosen.out):
        watchers = [bar.watcher(chosen.method)] if bar else []
        result = start(experiment, engine, watchers, overwrite)
    _show(None if quiet or as_json else summary_table(result.summary))
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
    flags: dict[str, Any],
) -> None:
    """Compare methods under one budget over several seeds."""
    overrides = [m for m in methods if _is_override(m)]
    names = [m for m in methods if m not in overrides]
    chosen = RunConfig.read(config, overrides, flags)
    from fedloom.runs.compare import compare
    from fedloom.runs.progress import comparison_table

    folder = chosen.out or _new_folder("compare")
    given = chosen.changed(out=folder).model_dump(exclude={"method", "data", "seed", "model"})
    with _bar(quiet, runs=len(names) * seeds) as bar:
        found = compare(
            names,
            chosen.data,
            seeds=range(seeds),
            model=chosen.model,
            watch=(lambda label, i, n: [bar.watcher(label)]) if bar else None,
            overwrite=overwrite,
            **given,
        )
    _show(None if quiet or as_json else comparison_table(found))
    if not quiet and not as_json:
        out.print(f"runs: {folder}")
    _print_json({**found.as_record(), "run": folder}, as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    *,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that stopped; the result is that of an undisturbed run."""
    from fedloom.runs.launch import resume as go_on
    from fedloom.runs.progress import summary_table

    with _bar(quiet) as bar, _resumable(str(run)):
        result = go_on(run, watchers=[bar.watcher(str(run))] if bar else [])
    for warning in result.warnings:
        err.print(f"fedloom: {warning}", style="yellow", soft_wrap=True)
    _show(None if quiet or as_json else summary_table(result.summary))
    _print_json(result.summary, as_json)


@app.command()
@settings(only=("data", "partition", "clients", "split", "shift", "normalize", "image_size"))
def partition(
    overrides: Overrides = None,
    *,
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder for partition.json, .svg")
    ] = None,
    as_json: Json = False,
    flags: dict[str, Any],
) -> None:
    """Divide a data set; print and save the table of clients and classes and a bubble plot."""
    chosen = RunConfig.read(None, overrides or (), {**flags, "partition_seed": seed})
    from fedloom.data.picture import bubble_svg, table
    from fedloom.runs.experiment import federated
    from fedloom.runs.folder import write_atomic

    data = federated(chosen)
    _show(None if as_json else table(data))
    record = {"clients": len(data), "fingerprint": data.partition.fingerprint}
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        data.partition.save(to / "partition.json")
        write_atomic(to / "partition.svg", bubble_svg(data))
        record["saved"] = str(to)
    if not as_json:
        out.print(f"fingerprint {data.partition.fingerprint[:16]}")
        out.print(f"saved {to}/partition.json and partition.svg" if to else "save it with --out")
    _print_json(record, as_json)


@app.command("list")
def list_command(
    kind: Annotated[str, typer.Argument(help="methods, models, data, partitions, ...")] = "methods",
    *,
    as_json: Json = False,
) -> None:
    """What there is: methods and terms, models, data, partitions, shifts, splits, protocols."""
    from fedloom.catalogue import catalogue, catalogue_table

    found = catalogue(kind)
    _show(None if as_json else catalogue_table(kind, found))
    _print_json({kind: found}, as_json)


@app.command()
def show(method: Annotated[str, typer.Argument(help="A name from `fedloom list`.")]) -> None:
    """A method's algorithm, hyper-parameters, deviations, and what leaves the client."""
    from fedloom.catalogue import page

    out.print(page(method), markup=False, highlight=False)


def main() -> None:
    """Entry point: errors for the user are one sentence, without traceback."""
    try:
        app()
    except FedloomError as e:
        if "--json" in sys.argv:
            print(json.dumps({"error": str(e)}))
        err.print(f"fedloom: {e}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("fedloom: interrupted")
        sys.exit(130)


@contextmanager
def _bar(quiet: bool, runs: int = 1) -> Iterator[Bar | None]:
    if quiet:
        yield None
        return
    from fedloom.runs.progress import Bar

    with Bar(err, runs) as bar:
        yield bar


@contextmanager
def _resumable(folder: str | None) -> Iterator[None]:
    """On Ctrl-C or a breakdown, say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"fedloom: stopped; go on with: fedloom resume {folder}", soft_wrap=True)
        sys.exit(130)


def _is_override(text: str) -> bool:
    key = text.partition("=")[0].strip().replace("-", "_")
    return "=" in text and key.isidentifier()


def _new_folder(label: str) -> str:
    """runs/<time>-<label>, which is not there yet."""
    import re
    import time

    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{slug}"
    tries = (base if i == 0 else base.with_name(f"{base.name}-{i}") for i in range(10_000))
    return str(next(path for path in tries if not path.exists()))


def _show(table: Any) -> None:
    if table is not None:
        out.print(table)


def _print_json(record: dict[str, Any], wanted: bool) -> None:
    if wanted:
        from fedloom.runs.folder import jsonable

        print(json.dumps(jsonable(record)), flush=True)
