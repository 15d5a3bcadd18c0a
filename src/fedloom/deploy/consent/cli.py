"""`fedloom deploy approve | try`: a site's operator looks at what is asked, and decides."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.deploy.cli_arguments import SiteFile
from fedloom.errors import BadInput

if TYPE_CHECKING:
    from fedloom.deploy.consent.decision import Desk

YES = "yes"


def approve(
    site: SiteFile,
    *,
    listed: Annotated[
        bool,
        typer.Option("--list", help="Show what waits and what was approved, and decide nothing."),
    ] = False,
    yes: Annotated[
        str,
        typer.Option(metavar="DIGEST", help="Approve this proposal without asking; for scripts."),
    ] = "",
    revoke: Annotated[
        str,
        typer.Option(
            metavar="DIGEST", help="Take an approval back, or forget a proposal that waits."
        ),
    ] = "",
) -> None:
    """Look at what a federation wants to run at this site, and agree to it or not.

    A run that nobody here approved waits: nothing of it runs, and nothing leaves. This shows its
    code, its settings and the form of all that would leave, and asks. Whatever changes later (code,
    settings, software, your policy) asks again.
    """
    from fedloom.deploy.consent.decision import Desk

    desk = Desk(site.absolute())
    if listed:
        _show(_listed(desk))
        return
    desk.judged.forget()
    if revoke:
        _revoke(desk, revoke)
    elif yes:
        _decide_all(desk, [desk.proposals.read(yes).proposal.digest], asked=False)
    else:
        waiting = desk.waiting()
        if not waiting:
            print("nothing waits for approval at this site")
        _decide_all(desk, waiting, asked=True)


def try_(
    site: SiteFile,
    *,
    proposal: Annotated[
        str, typer.Option(metavar="DIGEST", help="One that waits or was approved.")
    ] = "",
    project: Annotated[
        Path | None, typer.Option(help="The federation's project, where you have a copy.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Code that the federation brings may run here.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A new folder for the answers, to the last byte."),
    ] = None,
) -> None:
    """Compute this site's first answer on its own data, and show exactly what would be sent.

    Nothing is sent, and nothing of it is kept but in the folder --out. Without --proposal it is the
    one that waits. What the site's policy refuses is not computed: then the refusals are shown, and
    the code is 1.
    """
    from fedloom.deploy.consent.decision import Desk
    from fedloom.deploy.consent.text import attempted, refused
    from fedloom.deploy.project.folder import run_configuration

    desk = Desk(site.absolute())
    if project is not None:
        digest, configuration = "", run_configuration(project)
    else:
        digest = proposal or _only_one(desk)
        configuration = desk.proposals.read(digest).configuration
    code = _may_run(desk, configuration, yes)
    attempt = desk.attempt(digest, project, with_code=code, out=out)
    if attempt.refusals:
        _show(refused(attempt.refusals))
        raise typer.Exit(1)
    _show(attempted(attempt, out))


def _decide_all(desk: Desk, digests: Iterable[str], asked: bool) -> None:
    """One after the other; what the policy refuses, or what is outdated, does not keep the others
    from being shown."""
    from fedloom.deploy.consent.decision import Outdated

    refused = 0
    for digest in digests:
        try:
            refused += not _decide(desk, digest, asked)
        except Outdated as e:
            _show([f"{e}"])
            refused += 1
    if refused:
        raise typer.Exit(1)


def _decide(desk: Desk, digest: str, asked: bool) -> bool:
    """Show a proposal, the code first; compute what would leave; ask; record. False: the site's
    policy refuses it."""
    from fedloom.deploy.consent.text import refused, what_would_leave, what_would_run

    stored = desk.proposals.read(digest)
    _show(what_would_run(stored, desk.site))
    code = _may_run(desk, stored.configuration, not asked)
    print("computing what would leave ...", flush=True)
    assessment = desk.assess(digest, code)
    if assessment.refusals:
        _show(refused(assessment.refusals))
        print("not approved")
        return False
    _show(what_would_leave(assessment))
    if asked and not _says_yes(f"Approve {digest[:12]}? Type yes: "):
        desk.decline(digest)
        print("not approved; it waits")
        return True
    desk.approve(digest, assessment)
    print(f"approved {digest}")
    return True


def _may_run(desk: Desk, configuration: Mapping[str, Any], agreed: bool) -> bool:
    """Is there code of the federation to run, and did somebody agree to that?"""
    modules = desk.brings_code(configuration)
    if modules and not agreed:
        question = f"To go on, code of the federation ({', '.join(modules)}) has to run here, on"
        if not _says_yes(f"{question} made-up rows or on yours. Read it first. Type yes: "):
            raise BadInput("nothing of the federation has run, and nothing was decided")
    return bool(modules)


def _says_yes(question: str) -> bool:
    if not sys.stdin.isatty():
        raise BadInput(
            "nobody is there to ask; look with --list, then give --yes DIGEST (of `try`: --yes)"
        )
    return input(question).strip().lower() == YES


def _revoke(desk: Desk, digest: str) -> None:
    waiting = [name for name in desk.waiting() if name.startswith(digest)]
    if len(waiting) == 1:
        desk.forget(waiting[0])
        print(f"forgot the proposal {waiting[0]}")
    else:
        print(f"revoked {desk.revoke(digest)}")


def _listed(desk: Desk) -> Iterable[str]:
    for digest in desk.waiting():
        proposal = desk.proposals.read(digest).proposal
        yield f"waits     {digest}  {proposal.experiment}  {proposal.settings['method']}"
    for approval in desk.holding():
        yield f"approved  {approval.digest}  {approval.experiment}  at {approval.at}"


def _only_one(desk: Desk) -> str:
    waiting = desk.waiting()
    if len(waiting) != 1:
        raise BadInput(f"{len(waiting)} proposals wait; name one with --proposal, or a --project")
    return waiting[0]


def _show(lines: Iterable[str]) -> None:
    """Names and settings come from the server: nothing of them may act on the terminal."""
    from fedloom.plain_text import plain

    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        print(" " * indent + plain(line, most=1000))
