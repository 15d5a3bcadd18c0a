"""An operator's decision about a proposal: looked at, approved, revoked, tried."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.deploy.consent.approvals import (
    DECLINED,
    FORGOTTEN,
    Approval,
    Approvals,
    data_version,
)
from fedloom.deploy.consent.proposal import App, Proposal, Proposals, Stored, code_refusals, propose
from fedloom.deploy.gate.assess import assess_elsewhere
from fedloom.deploy.gate.attempted import Attempt
from fedloom.deploy.gate.bindings import Bindings
from fedloom.deploy.gate.confined import run_confined
from fedloom.deploy.gate.decide import Assess, objections
from fedloom.deploy.gate.form import Assessment, Objection
from fedloom.deploy.gate.judged import Judged
from fedloom.deploy.project.folder import run_configuration
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.deploy.site.state_binding import OtherSettings
from fedloom.errors import BadInput
from fedloom.policy import modules_of


class Outdated(BadInput):
    """A proposal of a time when the site's rules or software were others."""


@dataclass(frozen=True)
class Desk:
    """Where a site's operator decides."""

    file: Path
    """The site's `site.toml`."""

    @property
    def site(self) -> SiteConfig:
        """As it is now."""
        return SiteConfig.read(self.file)

    @property
    def proposals(self) -> Proposals:
        """What the site was asked."""
        return Proposals(self.site.state)

    @property
    def approvals(self) -> Approvals:
        """What was agreed to."""
        return Approvals(self.site.state)

    @property
    def judged(self) -> Judged:
        """What was judged since somebody looked."""
        return Judged(self.site.state)

    def waiting(self) -> list[str]:
        """Digests of proposals that nobody decided on, oldest first."""
        holding = self.approvals.holding()
        return [digest for digest in self.proposals.digests() if digest not in holding]

    def holding(self) -> list[Approval]:
        """Approvals, oldest first."""
        return list(self.approvals.holding().values())

    def assess(self, digest: str, with_app: bool, how: Assess = assess_elsewhere) -> Assessment:
        """What the proposal would do, and what the policy says to it."""
        site, stored = self.site, self.proposals.read(digest)
        self._check_current(stored)
        if pinned := code_refusals(site.policy, stored.app, stored.configuration):
            return Assessment(refusals=objections(pinned))
        try:
            Bindings(site.state).check(stored.settings)
        except OtherSettings as e:
            return Assessment(
                refusals=(Objection(rule="state", sentence=str(e), in_full=f"state: {e}"),)
            )
        # Taken first: data that is changed while somebody looks is judged anew by the gate.
        version = data_version(site)
        assessment = how(self.file, stored.proposal.digest, with_app)
        return assessment.model_copy(update={"data": version})

    def approve(self, digest: str, assessment: Assessment, by: str = "") -> None:
        """Record the decision."""
        stored = self.proposals.read(digest)
        self._check_current(stored)
        if assessment.refusals:
            reasons = "; ".join(objection.in_full for objection in assessment.refusals)
            raise BadInput(f"the policy of {self.file} refuses {digest[:12]}: {reasons}")
        self.approvals.approve(stored.proposal, assessment, by or _user(), stored.run)

    def decline(self, digest: str) -> None:
        """Record that somebody said no; the proposal waits on."""
        self._record(DECLINED, self.proposals.read(digest))

    def forget(self, digest: str) -> None:
        """Remove a proposal that waits, and record that."""
        try:
            self._record(FORGOTTEN, self.proposals.read(digest))
        except BadInput as e:  # damaged, which is a reason to forget it
            self.approvals.audit.append(FORGOTTEN, digest=digest, by=_user(), sentence=str(e))
        self.proposals.remove(digest)

    def _record(self, event: str, stored: Stored) -> None:
        self.approvals.record(event, stored.proposal, _user(), stored.run)

    def revoke(self, digest: str) -> str:
        """Take an approval back, by its digest or the beginning of it; returns the whole one."""
        holding = self.approvals.holding()
        matches = [name for name in holding if name.startswith(digest)]
        if len(matches) != 1 or not digest:
            raise BadInput(f"no single approval begins with {digest!r}; --list shows them")
        self.approvals.revoke(holding[matches[0]], _user())
        return matches[0]

    def approve_beforehand(
        self, app: App, configuration: Mapping[str, Any], by: str, how: Assess = assess_elsewhere
    ) -> Proposal:
        """Agree to a run that the site was not asked for yet, all of whose code may run."""
        proposal = propose(self.site, app, configuration)
        if proposal.digest not in self.approvals.holding():
            self.proposals.add(proposal, app, configuration)
            self.approve(proposal.digest, self.assess(proposal.digest, True, how), by)
        return proposal

    def attempt(
        self, digest: str, project: Path | None, with_code: bool, out: Path | None = None
    ) -> Attempt:
        """The site's first answers of a proposal, or of a project's run; nothing is sent, and they
        are kept in the new folder `out` alone. What its policy refuses is not computed."""
        if out is not None and (out.exists() or out.is_symlink()):
            raise BadInput(f"{out} is there already; name a new folder")
        if project is not None:
            app, settings = partial(App.of_project, project), run_configuration(project)
        else:
            stored = self.proposals.read(digest)
            app, settings = partial(App, stored.app.content), stored.configuration
        policy = self.site.policy
        if policy.pins_code and (pinned := code_refusals(policy, app(), settings)):
            return Attempt(refusals=objections(pinned))
        with tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
            configuration, fab = Path(scratch) / "configuration.json", Path(scratch) / "app.fab"
            configuration.write_text(json.dumps(settings), encoding="utf-8")
            words: list[str | Path] = [configuration]
            if with_code:
                fab.write_bytes(app().content)
                words += ["--app", fab]
            if out is not None:
                words += ["--out", out.absolute()]
            return run_confined("fedloom.deploy.gate.attempt", self.file, words, Attempt)

    def brings_code(self, configuration: Mapping[str, Any]) -> list[str]:
        """Modules that computing anything about a run would import."""
        return modules_of(Settings.read(configuration).run)

    def _check_current(self, stored: Stored) -> None:
        """Versions, modules and the policy may have changed since the proposal was stored."""
        now = propose(self.site, stored.app, stored.configuration)
        if now.digest != stored.proposal.digest:
            raise Outdated(
                f"the proposal {stored.proposal.digest[:12]} was made when this site's policy or"
                " software was another; delete it with --revoke, and let the server ask again"
            )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"
