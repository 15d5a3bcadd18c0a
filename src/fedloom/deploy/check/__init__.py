"""What is wrong at a site, told to its administrator before the federation starts.

A check returns a sentence where all is well, raises `BadInput` where something is wrong and
`CannotTell` where it cannot know. None hides another: `check` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.deploy.project import run_configuration
from fedloom.deploy.settings import Settings
from fedloom.errors import FedloomError, needs_extra

with needs_extra("flower"):
    from fedloom.deploy.check import keys, local, server
    from fedloom.deploy.check.case import CannotTell, Case
    from fedloom.deploy.check.connection import reason

CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[Case], str]], ...] = (
    ("name", ("name",), local.site_name),
    ("data", ("data", "label"), local.data),
    ("state folder", ("state",), local.state_folder),
    ("device", ("device",), local.device),
    ("authority", ("ca",), keys.authority),
    ("key", ("key",), keys.private_key),
    ("server name", ("superlink",), server.resolves),
    ("server port", ("superlink",), server.reachable),
    ("server TLS", ("superlink", "ca"), server.handshake),
    ("clock", ("superlink", "key"), server.clock),
    ("own port", ("port",), local.own_port),
    ("versions", (), local.versions),
)
"""What it is about, the keys it needs, and the check."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool | None
    """None: it could not be told."""
    said: str


def check(config_file: Path, settings: Settings | None = None) -> list[Finding]:
    """Everything that can be told about a site, in the order in which to put it right."""
    case = Case.read(config_file, settings)
    file = Finding("file", not case.unusable, case.said)
    return [file, *(_find(case, *about) for about in CHECKS)]


def report(config_file: Path, project: Path | None = None) -> bool:
    """Print what was found; whether nothing is wrong.

    `project` is the folder of the federation's Flower project, where the site has a copy.
    """
    settings, findings = None, []
    if project is not None:
        try:
            settings = Settings.read(run_configuration(project))
            findings = [Finding("project", True, f"the settings in {project} can be used")]
        except FedloomError as e:
            said = f"the settings in {project} cannot be used: {e}"
            findings = [Finding("project", False, said)]
    findings += check(config_file, settings)
    Console().print(as_table(findings))
    return all(finding.ok is not False for finding in findings)


def as_table(findings: list[Finding]) -> Table:
    """One line per finding."""
    marks = {True: ("ok", "green"), False: ("wrong", "bold red"), None: ("?", "yellow")}
    table = Table("", "what", "found", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(Text(*marks[finding.ok]), Text(finding.what), Text(finding.said))
    return table


def _find(case: Case, what: str, needs: tuple[str, ...], look: Callable[[Case], str]) -> Finding:
    try:
        case.require(needs)
        return Finding(what, True, look(case))
    except CannotTell as e:
        return Finding(what, None, str(e))
    except FedloomError as e:
        return Finding(what, False, str(e))
    except Exception as e:  # whatever it is, the other checks are still of use
        return Finding(what, False, f"the check broke down ({type(e).__name__}: {reason(e)})")
