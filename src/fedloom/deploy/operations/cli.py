"""What an IT department and a data-protection officer ask for: `fedloom purge`, `fedloom dossier`,
`fedloom deploy backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.errors import BadInput

Experiment = Annotated[str | None, typer.Option(help="Of this experiment alone.")]


def purge(
    what: Annotated[
        Path | None,
        typer.Argument(metavar="[SITE.TOML|RUN]", help="By default the whole cache of this user."),
    ] = None,
    *,
    experiment: Experiment = None,
    models: Annotated[
        bool, typer.Option("--models", help="The models, too: a run cannot go on then.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove copies of data that fedloom made: decoded rows in the cache, states between rounds.

    Records stay: audit log, approvals, journals, ledger. The data itself is never touched.
    """
    from fedloom.deploy.operations.copies import copies_of_run, copies_of_site, remove, whole_cache
    from fedloom.deploy.site.config import SiteConfig
    from fedloom.policy.quantities import size_text

    site = SiteConfig.read(what) if what is not None and what.suffix == ".toml" else None
    if experiment is not None and site is None:
        raise BadInput("--experiment is for a site; name its site.toml")
    if site is not None:
        copies = copies_of_site(site, experiment, models)
    else:
        copies = whole_cache() if what is None else copies_of_run(what, models)
    for copy in copies:
        print(f"{size_text(copy.nbytes):>10}  {copy.path}  ({copy.what})")
    if not copies:
        print("nothing to remove")
    if dry_run or not copies:
        return
    if not yes and not typer.confirm("Remove all of these?"):
        raise typer.Exit(1)
    print(f"removed {size_text(remove(copies, site))}")


def dossier(
    what: Annotated[Path, typer.Argument(metavar="SITE.TOML|RUN", help="Whose records.")],
    *,
    to: Annotated[Path, typer.Option("--out", "-o", help="A new folder.")] = Path("dossier"),
    site: Annotated[
        str | None, typer.Option(help="Of a run folder: the site's name, or a client's number.")
    ] = None,
    experiment: Experiment = None,
) -> None:
    """One folder and one page for a data-protection officer: what ran, what left, what was refused,
    the model, digests of all records."""
    from fedloom.deploy.operations.dossier import dossier_of_run, dossier_of_site

    if what.suffix == ".toml":
        made = dossier_of_site(what, experiment)
        if site is not None and site != made.site:
            raise BadInput(f"{what} is the file of site {made.site!r}, not of {site!r}")
    elif site is None:
        raise BadInput("a run folder holds several clients; name one by --site")
    else:
        made = dossier_of_run(what, site)
    print(f"saved {made.write(to)}")


def backup(
    what: Annotated[Path, typer.Argument(metavar="PROJECT|SITE.TOML", help="What to back up.")],
    file: Annotated[Path, typer.Argument(help="A new file, NAME.tar.gz; it holds private keys.")],
) -> None:
    """Write what a server or a site needs to go on to one file; both may run meanwhile."""
    from fedloom.deploy.operations.backup import back_up

    print(f"saved {back_up(what, file)} files in {file}")


def restore(
    file: Annotated[Path, typer.Argument(help="Written by `fedloom deploy backup`.")],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Unpack a backup, once every file in it is what it was."""
    from fedloom.deploy.operations import backup

    print(f"restored {backup.restore(file, folder)} files in {folder}")
