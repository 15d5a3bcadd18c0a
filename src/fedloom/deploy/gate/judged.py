"""How many proposals are judged for a server before somebody at the site looks.

Whether a proposal is refused or waits follows from the site's rows: how many there are, and of
numbers to predict their mean and spread. Somebody who proposes one after the other, each a little
different, could read these from the answers, without any approval.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedloom.errors import BadInput
from fedloom.files import write_json

MOST_JUDGED = 50


class Judged:
    """Proposals that were judged since the operator last looked, `state/judged.json`."""

    def __init__(self, state: Path) -> None:
        self.file = state / "judged.json"

    def add(self, digest: str) -> bool:
        """May this proposal be judged? One that was judged already may."""
        digests = self._read()
        if digest in digests:
            return True
        if len(digests) >= MOST_JUDGED:
            return False
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self.file, [*digests, digest])
        return True

    def forget(self) -> None:
        """Somebody looks: others may be judged."""
        self.file.unlink(missing_ok=True)

    def _read(self) -> list[str]:
        if not self.file.exists():
            return []
        try:
            return [str(digest) for digest in json.loads(self.file.read_text(encoding="utf-8"))]
        except (ValueError, TypeError):
            raise BadInput(f"{self.file} is damaged; delete it") from None
