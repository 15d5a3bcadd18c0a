"""`fedloom audit verify`: is a log of a site or a server still what was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.audit import verify
from fedloom.errors import BadInput

audit_app = typer.Typer(
    name="audit",
    help="The logs in which a site and a server record what ran, what left and what was refused.",
    no_args_is_help=True,
    suggest_commands=False,  # Click does
)


@audit_app.callback()
def audit() -> None:
    """So that `verify` is a command of its own."""


@audit_app.command("verify")
def verify_command(
    what: Annotated[Path, typer.Argument(help="A log, a site's site.toml, or a project's folder.")],
) -> None:
    """Say whether a log was changed, by the hash that chains every line to the one before.

    Of a site it also says whether lines are missing that its counters and approvals know of. It
    prints the hash of the last line: note it down elsewhere, for whoever cuts off lines and changes
    those files too is seen by nothing else.
    """
    for log in _logs(what):
        done = verify(log)
        print(f"{log}: {done.lines} lines, unbroken; the last one has sha256 {done.last}")
    if what.suffix == ".toml":
        from fedloom.deploy.operations.missing_lines import check_nothing_is_missing
        from fedloom.deploy.site.config import SiteConfig

        check_nothing_is_missing(SiteConfig.read(what).state)


def _logs(what: Path) -> list[Path]:
    """The logs of a file, a site or a project."""
    if what.is_dir():
        return _existing([what / "server" / "audit.jsonl"], what)
    if what.suffix == ".toml":
        from fedloom.deploy.site.config import SiteConfig

        state = SiteConfig.read(what).state
        return _existing([state / "audit.jsonl", state / "approvals.jsonl"], what)
    return [what]


def _existing(logs: list[Path], what: Path) -> list[Path]:
    existing = [log for log in logs if log.exists()]
    if not existing:
        raise BadInput(f"{what} has no audit log yet; it begins with the first thing that happens")
    return existing
