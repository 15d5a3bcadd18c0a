"""Take an experiment back to an earlier round; the next `deploy run` goes on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from fedloom.deploy.project.folder import Project, out_of
from fedloom.deploy.server.audit import record_event
from fedloom.errors import BadInput
from fedloom.files import write_atomic
from fedloom.record import LedgerLine, LedgerStep, RoundRecord
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.folder import RunFolder
from fedloom.runs.journal import line_of, read_records


def roll_back(project: Project, experiment: str, to_round: int) -> int:
    """Forget what came after a round; returns how many rounds that are.

    What the sites sent in those rounds stays in the ledger, as not counted: it has left them.
    """
    with RunFolder.open(project.root / out_of(experiment) / "run") as folder:
        records = read_records(folder.metrics, RoundRecord)
        step = 1 + max((r.step for r in records if r.round == to_round), default=-1)
        checkpoints = Checkpoints(folder.checkpoints)
        kept = checkpoints.steps()
        if not step or step not in kept:
            rounds = sorted({r.round for r in records if r.step + 1 in kept})
            raise BadInput(
                f"{experiment} cannot go back to round {to_round}; there are checkpoints of rounds"
                f" {', '.join(map(str, rounds)) or 'none'} (keep-rounds says how many stay)"
            )
        checkpoints.drop_after(step)
        _mark_not_counted(folder, step)
        folder.summary.unlink(missing_ok=True)
        gone = sorted({r.round for r in records if r.step >= step})
    record_event(
        project.root, "rolled back", experiment=experiment, to_round=to_round, forgotten=gone
    )
    return len(gone)


def _mark_not_counted(folder: RunFolder, step: int) -> None:
    lines: list[LedgerLine] = read_records(folder.ledger, cast(Any, LedgerLine))
    changed = [
        replace(line, counted=False) if isinstance(line, LedgerStep) and line.step >= step else line
        for line in lines
    ]
    write_atomic(folder.ledger, b"".join(map(line_of, changed)))
