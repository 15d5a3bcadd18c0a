"""`fedloom deploy init | link | node | run | check | local`, and what `server.cli`, `consent.cli`
and `operations.cli` add.

Whatever needs torch or Flower is imported inside a command, so that help is quick.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedloom.deploy.cli_arguments import ProjectFolder, SiteFile
from fedloom.deploy.consent.cli import approve, try_
from fedloom.deploy.operations.cli import backup, restore
from fedloom.deploy.server import cli as server_cli
from fedloom.errors import BadInput
from fedloom.expression import literal
from fedloom.signals import stops_as_ctrl_c

if TYPE_CHECKING:
    from fedloom.deploy.processes.children import Child

deploy_app = typer.Typer(
    name="deploy",
    help="Train where the data is: one SuperLink, a SuperNode at every site.\n\n"
    "To begin: `fedloom deploy local`, which rehearses all of it on this machine.",
    no_args_is_help=True,
    suggest_commands=False,  # Click does
)
deploy_app.command()(approve)
deploy_app.command("try")(try_)
deploy_app.command()(backup)
deploy_app.command()(restore)
out = Console()
err = Console(stderr=True)

PAUSE = 10.0
"""Seconds before a SuperNode that ended is started again."""

Method = Annotated[str, typer.Option(help="Method expression; see `fedloom list`.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE.py|MODULE",
        help="With methods, models or data of your own; may be repeated.",
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Serve /health and /metrics here, e.g. 127.0.0.1:9100."),
]
LogFile = Annotated[
    Path | None, typer.Option(help="Write to this file, with times in UTC; it rotates at 10 MB.")
]
Tls = Annotated[bool, typer.Option(help="Encryption, and a key for every site.")]


@deploy_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Of the run, e.g. image_size=32 lr=0.01"),
    ] = None,
    *,
    sites: Annotated[str, typer.Option(help="Names, e.g. hospital-a,hospital-b.")],
    host: Annotated[
        str, typer.Option(help="Name or address by which sites reach the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 9092,
    method: Method = "fedper",
    model: Annotated[str, typer.Option(help="Model expression; auto: by the data.")] = "auto",
    imports: Imports = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")] = 20,
    schema: Annotated[
        Path | None,
        typer.Option(help="Data that looks as every site's must: columns, order, classes."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label column of that data.")] = None,
    tls: Tls = True,
) -> None:
    """Write a project: a Flower app, certificates, and a folder to hand to each site."""
    from fedloom.deploy.project.new import schema_for, write_project
    from fedloom.deploy.settings import Settings

    names = [name.strip() for name in sites.split(",") if name.strip()]
    run = {**_imported(method, model, imports), "rounds": rounds}
    run |= dict(map(_pair, settings or ()))
    checked = Settings.read({**run, "imports": "", "sites": ",".join(names)})
    agreed = None if schema is None else schema_for(checked, schema, label)
    write_project(folder, names, host=host, port=port, tls=tls, run=run, schema=agreed)
    print(f"wrote {folder}; {folder / 'README.md'} says how to go on")
    if agreed is None:
        print(f"it needs a schema: fedloom deploy schema {folder} EXAMPLE.csv")


@deploy_app.command()
def link(project: ProjectFolder, *, metrics: Metrics = None, log: LogFile = None) -> None:
    """Run the SuperLink in the foreground, and let the sites' keys in."""
    from fedloom.deploy.operations.log_lines import logged
    from fedloom.deploy.operations.monitoring import watched_link
    from fedloom.deploy.processes.federation import start_link, superlink
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.project.public_keys import PublicKeys

    read = Project.read(project)
    child = superlink(read)
    with logged(log), watched_link(read, child, metrics) as address, _ending(child):
        start_link(child, read)
        if address:
            _note(f"/health and /metrics at {address}")
        _note(f"the SuperLink listens at {read.link.bind}:{read.link.port}")
        if read.link.ca is None:
            _note("without TLS: nothing is encrypted, and any node may connect")
        else:
            sites = ", ".join(PublicKeys(read.keys_folder).names())
            _note(f"it lets in the keys in {read.keys_folder}: {sites or 'none'}")
        code = child.wait()
    _note(f"the SuperLink ended with code {code}")
    raise typer.Exit(1)


@deploy_app.command()
def node(
    site: SiteFile,
    *,
    pause: Annotated[float, typer.Option(min=0, help="Seconds before a restart.")] = PAUSE,
    metrics: Metrics = None,
    log: LogFile = None,
) -> None:
    """Run a site's SuperNode in the foreground; where it ends, start it again.

    After a crash the SuperLink refuses it for about a minute, until it counts as gone.
    """
    from fedloom.deploy.operations.log_lines import logged
    from fedloom.deploy.operations.monitoring import watched_node
    from fedloom.deploy.processes.federation import supernode
    from fedloom.deploy.site.config import SiteConfig

    config = SiteConfig.read(site)
    child = supernode(site, config)
    with logged(log), watched_node(config, child, metrics) as watch, _ending(child):
        if watch.address:
            _note(f"/health and /metrics at {watch.address}")
        while True:
            watch.starts += 1
            code = child.start().wait()
            child.end()  # processes that it left behind
            # Flower's SuperNode ends itself, and says nothing, where the server refuses its key.
            why = ": the server does not accept this site's key, or its clock" if code == 0 else ""
            _note(f"the SuperNode ended with code {code}{why}; again in {pause:g} s")
            time.sleep(pause)


@deploy_app.command()
def run(
    project: ProjectFolder,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="E.g. rounds=50 lr=0.01")
    ] = None,
) -> None:
    """Submit a run and follow it; the same command after a crash goes on from the checkpoint.

    Ctrl-C stops following it; the run itself ends with `fedloom deploy link`.
    """
    from fedloom.deploy.processes.children import ChildFailed, listens
    from fedloom.deploy.processes.federation import COMPLETED, Run
    from fedloom.deploy.project.folder import Project

    read = Project.read(project)
    host, _, port = read.link.address.rpartition(":")
    if not listens(host, int(port)):
        raise BadInput(
            f"no SuperLink listens at {read.link.address}; start `fedloom deploy link {project}`"
        )
    log = read.root / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}.log"
    submitted = Run(read, dict(map(_pair, overrides or ())), log)
    with _ending(submitted.child, "no longer followed; the run goes on"):
        submitted.child.start()
        with open(log, encoding="utf-8", errors="replace") as output:
            while submitted.child.alive:
                print(output.read(), end="", flush=True)
                time.sleep(0.3)
            print(output.read(), end="", flush=True)
        status = submitted.status()
    if status != COMPLETED:
        why = submitted.failure() or "see above"
        raise ChildFailed(f"the run is {status}: {why}; to go on give the same command")
    _note(f"the run ended well; it is in {submitted.out / 'run'}")


@deploy_app.command()
def check(
    site: SiteFile,
    *,
    project: Annotated[
        Path | None, typer.Option(help="The federation's project, where you have a copy.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Code of that project may run here.")] = False,
) -> None:
    """Say what is wrong at a site: data, schema, policy, certificate, key, clock, port."""
    from fedloom.deploy.check import report

    if not report(site, project, yes):
        raise typer.Exit(1)


@deploy_app.command()
def local(
    *,
    nodes: Annotated[int, typer.Option(min=2, max=20, help="SuperNodes.")] = 3,
    tls: Tls = True,
    method: Method = "fedper",
    imports: Imports = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(help="A new folder for the project, which then stays.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A site.toml whose [policy] every site shall have.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for all of it.")] = 900,
) -> None:
    """Rehearse a deployment on this machine: link, nodes, TLS, a run, and a model at every site."""
    from fedloom.deploy.processes.rehearsal import Rehearsal, digits_project, outcome_table
    from fedloom.policy import Policy

    rules = None if policy is None else Policy.read(policy)
    run = {**_imported(method, "auto", imports), "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="fedloom-") as scratch, stops_as_ctrl_c():
        try:
            project = digits_project(keep or Path(scratch) / "local", nodes, tls, run, rules)
            done = Rehearsal(err, timeout).perform(project)
        except KeyboardInterrupt:
            _note("stopped; every process was ended")
            sys.exit(130)
        out.print(outcome_table(done, project.root))
        print(f"shared part: {done.shared.relative_to(project.root)}")
        print(f"{sum(done.seconds) / len(done.seconds):.1f} s a round")
    print(f"kept in {keep}" if keep else "the folder was removed; --keep FOLDER leaves it")


for command in server_cli.COMMANDS:
    deploy_app.command()(command)


def _imported(method: str, model: str, imports: list[str] | None) -> dict[str, Any]:
    """Keys of a run with these, after importing and checking what they name."""
    from fedloom.methods import parse_method
    from fedloom.runs.config import RunConfig

    given = {"method": method, "model": model, "imports": imports or ()}
    config = RunConfig.checked(given).imported()
    parse_method(method)
    return {"method": method, "model": config.model, "imports": config.imports}


@contextmanager
def _ending(child: Child, note: str = "stopped") -> Iterator[None]:
    """Whatever happens, the child ends with the block; Ctrl-C is a way to end it, not an error."""
    with stops_as_ctrl_c():
        try:
            yield
        except KeyboardInterrupt:
            _note(note)
            raise typer.Exit(0) from None
        finally:
            child.end()


def _pair(text: str) -> tuple[str, Any]:
    """One `key=value`; `none` stays a word, because `key=` is what unsets a key."""
    key, equals, word = (part.strip() for part in text.partition("="))
    if not equals:
        raise BadInput(f"{text!r} is not an override; write key=value, for instance rounds=20")
    value = literal(word)
    return key, word if value is None else value


def _note(text: str) -> None:
    err.print(f"fedloom: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)
