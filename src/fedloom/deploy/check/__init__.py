"""What is wrong at a site, reported to its administrator before the federation starts.

A check returns a sentence where all is well, raises `BadInput` where something is wrong and
`CannotTell` where it cannot know. `check` runs them all, whatever some of them report.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.deploy.project.folder import run_configuration
from fedloom.deploy.settings import Settings
from fedloom.errors import FedloomError, needs_extra

with needs_extra("flower"):
    from fedloom.deploy.check import keys, local, server
    from fedloom.deploy.check.case import CannotTell, Case
    from fedloom.deploy.check.connection import reason

CHECKS: tuple[tuple[str, tuple[str, ...], Callable[[Case], str]], ...] = (
    ("name", ("name",), local.site_name),
    ("data", ("data", "label"), local.data),
    ("schema", ("data", "label", "schema_file", "units"), local.schema),
    ("policy", ("data", "label", "schema_file", "units", "policy"), local.policy),
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
"""The subject, the keys of site.toml that the check needs, and the check."""


@dataclass(frozen=True)
class CheckResult:
    """What one check of a site came to."""

    subject: str
    ok: bool | None
    """None: the check could not decide."""
    message: str


def check(
    config_file: Path,
    settings: Settings | None = None,
    project: Path | None = None,
    code_may_run: bool = True,
) -> list[CheckResult]:
    """Every check of a site, in the order in which an administrator should put things right."""
    case = Case.read(config_file, settings, project, code_may_run)
    file = CheckResult("file", not case.unusable, case.about_file)
    return [file, *(_perform(case, *entry) for entry in CHECKS)]


def report(config_file: Path, project: Path | None = None, code_may_run: bool = False) -> bool:
    """Print every result; returns whether nothing is wrong.

    `project` is the folder of the federation's Flower project, where the site has a copy; modules
    that it imports run only where somebody agreed to that.
    """
    settings, results = None, []
    if project is not None:
        if code_may_run:
            sys.path.append(str(project))  # modules with users' own code lie there, as in a run
        try:
            settings = Settings.read(run_configuration(project))
            results = [CheckResult("project", True, f"the settings in {project} can be used")]
        except FedloomError as e:
            message = f"the settings in {project} cannot be used: {e}"
            results = [CheckResult("project", False, message)]
    results += check(config_file, settings, project, code_may_run)
    Console().print(as_table(results))
    return all(result.ok is not False for result in results)


def as_table(results: list[CheckResult]) -> Table:
    """One line per result."""
    marks = {True: ("ok", "green"), False: ("wrong", "bold red"), None: ("?", "yellow")}
    table = Table("", "what", "found", box=None, pad_edge=False)
    for result in results:
        table.add_row(Text(*marks[result.ok]), Text(result.subject), Text(result.message))
    return table


def _perform(
    case: Case, subject: str, needs: tuple[str, ...], look: Callable[[Case], str]
) -> CheckResult:
    try:
        case.require(needs)
        return CheckResult(subject, True, look(case))
    except CannotTell as e:
        return CheckResult(subject, None, str(e))
    except FedloomError as e:
        return CheckResult(subject, False, str(e))
    except Exception as e:  # an error in one check must not hide the results of the others
        message = f"the check broke down ({type(e).__name__}: {reason(e)})"
        return CheckResult(subject, False, message)
