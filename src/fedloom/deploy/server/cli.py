"""`fedloom deploy add | revoke | rotate | renew | schema | rollback`: at the server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from fedloom.deploy.cli_arguments import ProjectFolder

SiteName = Annotated[str, typer.Argument(help="What the federation calls the site.")]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key", help="Public key that the site made itself; without: made here."),
]


def add(project: ProjectFolder, name: SiteName, *, key: KeyFile = None) -> None:
    """Let a new site in, at once; runs that begin from now on expect it."""
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.project.identity import add_site

    read = Project.read(project)
    identity = add_site(read, name, key)
    print(f"{name} is let in with the key {identity.fingerprint}")
    print(f"hand it {read.site(name).parent}, and delete your copy")


def revoke(project: ProjectFolder, name: SiteName) -> None:
    """Shut a site out, at once; the others go on. Its key is never accepted again."""
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.project.identity import revoke_site

    identity = revoke_site(Project.read(project), name)
    print(f"{name} is shut out; the key {identity.fingerprint} is refused from now on")


def rotate(project: ProjectFolder, name: SiteName, *, key: KeyFile = None) -> None:
    """Give a site another key, at once: the old one is refused, the site goes on with the new."""
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.project.identity import rotate_key

    identity = rotate_key(Project.read(project), name, key)
    print(f"{name} is let in with the key {identity.fingerprint} from now on, and no other")
    if identity.folder is not None:
        print(f"hand it {identity.folder / 'site.key'}, and delete your copy")


def renew(
    project: ProjectFolder,
    *,
    ca_key: Annotated[
        Path | None, typer.Option(help="The authority's key, where it is not in server/.")
    ] = None,
) -> None:
    """Renew the server's certificate by the same authority; sites notice nothing."""
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.project.identity import renew_certificate

    names = renew_certificate(Project.read(project), ca_key)
    print(f"the server has a new certificate for {', '.join(names)}; it is used at once")


def schema(
    project: ProjectFolder,
    data: Annotated[Path, typer.Argument(help="Data that looks as every site's must.")],
    *,
    label: Annotated[str | None, typer.Option(help="Label column of a table.")] = None,
) -> None:
    """Write what the data of all sites must look like, from an example, and copy it to sites/.

    Where the model is left to the data (auto) and would be one that sites refuse, another is
    written into pyproject.toml.
    """
    from fedloom.deploy.project.folder import SCHEMA, Project
    from fedloom.deploy.project.new import schema_for, state_model
    from fedloom.deploy.server.audit import record_event

    read = Project.read(project)
    written = schema_for(read.settings(), data, label)
    written.write(read.schema_file)
    copies = [file.parent / SCHEMA for file in (read.root / "sites").glob("*/site.toml")]
    for copy in copies:
        shutil.copy(read.schema_file, copy)
    record_event(read.root, "schema written", digest=written.digest)
    print(f"wrote {read.schema_file} and {len(copies)} copies in sites/: state the units there,")
    print("copy it again where you change it, and give it to sites that have their folder already")
    if model := state_model(read, written):
        print(f"set model = {model!r} in pyproject.toml: sites refuse what auto stands for here")


def rollback(
    project: ProjectFolder,
    *,
    to: Annotated[int, typer.Option(min=1, help="The last round that stays.")],
    experiment: Annotated[str | None, typer.Option(help="By default the project's own.")] = None,
) -> None:
    """Take an experiment back to an earlier round; the next `deploy run` goes on from there."""
    from fedloom.deploy.project.folder import Project
    from fedloom.deploy.server.rollback import roll_back

    read = Project.read(project)
    name = experiment or read.settings().experiment
    gone = roll_back(read, name, to)
    print(f"{name} is back at round {to}; {gone} rounds after it no longer count")


COMMANDS = (add, revoke, rotate, renew, schema, rollback)
