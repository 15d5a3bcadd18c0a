"""What a site's operator agreed to: `state/approvals.jsonl`, chained like the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedloom.audit import AuditLog, verify
from fedloom.data.named_images import named_images
from fedloom.deploy.consent.proposal import Proposal
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.site.config import SiteConfig

APPROVED, REVOKED = "approved", "revoked"
DECLINED, FORGOTTEN = "declined", "forgotten"
"""Somebody said no, and it waits on; a proposal that waited was removed."""


@dataclass(frozen=True)
class Approval:
    """One that holds."""

    digest: str
    at: str
    """When, in UTC."""
    experiment: str
    assessment: Assessment
    """What the operator was shown: above all the form of what may leave."""
    data: str
    """`data_version` when it was looked at for that."""
    method: str
    run: str
    """The first of Flower's runs that asked for it; empty: none had."""
    times: int
    """How often it was approved: each time for all rounds of the run."""


class Approvals:
    """The approvals of a site."""

    def __init__(self, state: Path) -> None:
        self.log = AuditLog(state / "approvals.jsonl")
        self.audit = AuditLog(state / "audit.jsonl")

    def approve(self, proposal: Proposal, assessment: Assessment, by: str, run: str = "") -> None:
        """From now on a run with this proposal passes; `by` says who decided, `run` which one had
        asked."""
        if assessment.form is None or assessment.refusals:
            raise ValueError("what is refused, or whose form is not known, cannot be approved")
        fields = _fields(proposal, run, by)
        shown = assessment.model_dump(mode="json")
        self.audit.append(APPROVED, **fields, settings=proposal.settings, form=shown["form"])
        self.log.append(APPROVED, **fields, assessment=shown, data=assessment.data)

    def revoke(self, approval: Approval, by: str) -> None:
        """From now on it does not."""
        fields = {
            "digest": approval.digest,
            "run": approval.run,
            "experiment": approval.experiment,
            "method": approval.method,
            "by": by,
        }
        self.log.append(REVOKED, **fields)
        self.audit.append(REVOKED, **fields)

    def record(self, event: str, proposal: Proposal, by: str, run: str = "") -> None:
        """Another decision than these, which changes no approval."""
        self.audit.append(event, **_fields(proposal, run, by), settings=proposal.settings)

    def holding(self) -> dict[str, Approval]:
        """Digest -> approval, of all that hold; refuses a file that was changed by hand."""
        if not self.log.path.exists():
            return {}
        verify(self.log.path)
        holding: dict[str, Approval] = {}
        for line in self.log.lines():
            if line["event"] == APPROVED:
                earlier = holding.get(line["digest"])
                holding[line["digest"]] = _approval(
                    line, 1 if earlier is None else earlier.times + 1
                )
            else:
                holding.pop(line["digest"], None)
        return holding


def _fields(proposal: Proposal, run: str, by: str) -> dict[str, str]:
    return {
        "digest": proposal.digest,
        "run": run,
        "experiment": proposal.experiment,
        "method": str(proposal.settings["method"]),
        "by": by,
    }


def data_version(site: SiteConfig) -> str:
    """Changes when the site's data, a file or a folder, or an image that a table of it names, is
    written anew, or is read differently."""
    data = site.data
    files = sorted(file for file in data.rglob("*") if file.is_file()) if data.is_dir() else [data]
    digest = sha256(f"{site.label} {sorted(site.units.items())}\n".encode())
    for file in (*files, *named_images(data), *([site.schema_file] if site.schema_file else [])):
        digest.update(f"{file} {_stamp(file)}\n".encode())
    return digest.hexdigest()


def _stamp(file: Path) -> str:
    try:
        about = file.stat()
    except OSError:  # judging the data says why
        return "missing"
    return f"{about.st_ino} {about.st_size} {about.st_mtime_ns}"


def _approval(line: dict[str, Any], times: int) -> Approval:
    assessment = Assessment.model_validate(line["assessment"])
    return Approval(
        digest=line["digest"],
        at=line["at"],
        experiment=line["experiment"],
        assessment=assessment,
        data=line["data"],
        method=line.get("method", ""),  # which earlier versions did not write
        run=line.get("run", ""),
        times=times,
    )
