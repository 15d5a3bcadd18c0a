"""Lines of a site's audit log that are gone, seen by what the site wrote down elsewhere.

A chain of hashes does not show that its end is missing. But the gate counts what it sends, and
approvals have a log of their own; the audit log is written before both, so that it knows no less.
Revocations are written to the approvals first, where they count.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedloom.audit import AuditError, AuditLog
from fedloom.deploy.consent.approvals import APPROVED, REVOKED
from fedloom.deploy.gate.counters import Counters


def check_nothing_is_missing(state: Path) -> None:
    """Raises where counters or approvals of a site know of something that its audit log lacks, or
    the log of a revocation that its approvals lack."""
    log, approvals = AuditLog(state / "audit.jsonl"), AuditLog(state / "approvals.jsonl")
    sent = Counter[str]()
    for line in log.lines():
        if line["event"] == "sent" and line.get("task") != "hello":
            sent[str(line.get("experiment"))] += int(line.get("bytes", 0))
    counters = Counters(state)
    for experiment in sorted(counters.experiments()):
        counted = counters.of(experiment).bytes
        if counted > sent[experiment]:
            raise AuditError(
                f"{log.path}: lines are missing: {counters.file} counts {counted} bytes of"
                f" {experiment!r} that were sent, and the log has {sent[experiment]}"
            )
    for digest in _times(approvals, APPROVED) - _times(log, APPROVED):
        raise AuditError(
            f"{log.path}: lines are missing: {approvals.path} has an approval of {digest[:12]} that"
            " the log lacks"
        )
    for digest in _times(log, REVOKED) - _times(approvals, REVOKED):
        raise AuditError(
            f"{approvals.path}: lines are missing: {log.path} says that {digest[:12]} was revoked;"
            " revoke it again"
        )


def _times(log: AuditLog, event: str) -> Counter[str]:
    """How often each proposal was approved, or revoked."""
    return Counter(str(line.get("digest")) for line in log.lines() if line["event"] == event)
