"""Who was asked in a step and who answered, as the run recorded it.

That a client was not there, or did not answer, cannot be computed again: it is the run's own word.
All that the others did can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.core.data import Federation
from fedloom.core.evaluate import Ask
from fedloom.core.message import Plan, Up
from fedloom.core.program import Program
from fedloom.core.score import ClientScore
from fedloom.core.secure.slices import SECURE
from fedloom.core.tree import State
from fedloom.engines import Absent, Engine, Job, JobOf
from fedloom.record import RoundRecord


@dataclass(frozen=True)
class Attendance:
    """Who was there in a step."""

    record: RoundRecord
    present: Sequence[int]
    """In the order of their ids."""
    complete: bool
    """Everybody was there, and everybody who was asked answered."""

    @classmethod
    def of(
        cls, record: RoundRecord, program: Program, plan: Plan, participation: float
    ) -> Attendance | None:
        """Of a recorded step; None: its cohort is not drawn by the run's seed, neither from all
        clients nor from those that were asked or scored.

        Where as many were asked as from all clients, others must have been there to draw from.
        """
        asked = list(record.cohort)
        everybody = program.cohort(plan, participation)
        if asked == everybody:
            return cls(record, range(program.clients), complete=not record.absent)
        scored = _scored(record) & set(range(program.clients))
        present = sorted({*asked, *scored})
        drawn = program.cohort(plan, participation, present)
        if asked != drawn or (len(asked) >= len(everybody) and present == asked):
            return None
        return cls(record, present, complete=False)


def remark_on_missing(steps: Sequence[Attendance]) -> list[str]:
    """In which rounds clients were missing, for the verdict."""
    rounds = sorted({step.record.round for step in steps if not step.complete})
    if not rounds:
        return []
    return [
        f"clients were missing in rounds {', '.join(map(str, rounds))}: that they were is the run's"
        " own word, which cannot be checked; what the others did is computed again as in any round"
    ]


class AsRecorded(Engine):
    """Computes with another engine, for those clients that answered in the run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.elsewhere = engine.elsewhere
        self._now: Attendance | None = None

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        self._engine.open(program, data, folder)

    def close(self) -> None:
        self._engine.close()

    def begin(self, step: Attendance) -> None:
        """The step that is computed next."""
        self._now = step

    def present(self, clients: int) -> Sequence[int]:
        return range(clients) if self._now is None else self._now.present

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up | Absent, State]]:
        absent = {} if self._now is None else self._now.record.absent
        # Each is made once, also where nobody answers: it was sent, and counts.
        made = {cid: job(cid) for cid in ids if cid in absent}
        gone = [cid for cid in made if not self._went_later(made[cid])]
        for cid in gone:
            yield cid, Absent(absent[cid]), {}
        answering = [cid for cid in ids if cid not in gone]
        yield from self._engine.clients(answering, lambda cid: made.get(cid) or job(cid), ask)

    def _went_later(self, job: Job) -> bool:
        """With secure aggregation a client may have sent its shares and then no upload."""
        assert self._now is not None
        members = self._now.record.notes.get(SECURE, {}).get("members", ())
        return job.cid in members and job.down.plan.part == SECURE

    def evaluate(
        self, ids: Sequence[int], job: JobOf, ask: Ask
    ) -> Iterator[tuple[int, tuple[ClientScore, ...]]]:
        answered = ids
        if self._now is not None and not self._now.complete:
            scored = _scored(self._now.record, ask)
            answered = [cid for cid in ids if cid < 0 or cid in scored]  # below 0: shared test sets
        return self._engine.evaluate(answered, job, ask)


def _scored(record: RoundRecord, ask: Ask | None = None) -> set[int]:
    """The clients that were scored in a step, of one question or of all."""
    return {
        cid
        for score in record.scores
        if score.at.group != "shared tests" and (ask is None or score.at.moment in ask.moments)
        for cid in score.clients
    }
