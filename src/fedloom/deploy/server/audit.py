"""The server's own audit log, `server/audit.jsonl` of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AUDIT = Path("server") / "audit.jsonl"


def record_event(root: Path, event: str, **fields: Any) -> None:
    """Add a line about something that happened at the server of the project in `root`."""
    from fedloom.audit import AuditLog

    AuditLog(root / AUDIT).append(event, **fields)
