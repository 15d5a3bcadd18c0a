"""What a verification compared, and what differed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedloom.verification.draw import Odds

Subject = Literal["links", "checkpoints", "answers", "server steps", "scores", "result"]
SUBJECTS: Mapping[Subject, str] = {
    "links": "links of the chain",
    "checkpoints": "checkpoints kept",
    "answers": "clients' answers",
    "server steps": "server's steps",
    "scores": "scores",
    "result": "the result, from the journal",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is not as recorded."""

    subject: Subject
    where: str
    """For instance "round 2, client 3"."""
    what: str
    """In words."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Tally:
    """Counts what was compared, and collects what differs."""

    def __init__(self) -> None:
        self.checked: Counter[Subject] = Counter()
        self.differences: list[Difference] = []

    def compare(self, subject: Subject, where: str, wrong: Mapping[str, bool]) -> bool:
        """Count one thing; `wrong` says by a sentence what is not as recorded. True: all is."""
        self.checked[subject] += 1
        differing = [Difference(subject, where, what) for what, differs in wrong.items() if differs]
        self.differences += differing
        return not differing


@dataclass(frozen=True)
class Verification:
    """What was checked of a run, and what came out."""

    run: str
    digest: str
    """Of the run: the last link of its chain."""
    recorded: Mapping[Subject, int]
    checked: Mapping[Subject, int]
    differences: tuple[Difference, ...]
    odds: Odds | None
    """That a change is caught; None where nothing could be computed again."""
    seed: int
    """Of the draw, to repeat it."""
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What the run was computed with and what is here, where they differ."""
    remarks: tuple[str, ...] = ()
    """What could not be checked, and why."""

    @property
    def good(self) -> bool:
        """Whether all that was compared agrees."""
        return not self.differences

    @property
    def sentence(self) -> str:
        """The outcome in a sentence or two."""
        if self.good:
            return f"Everything that was checked agrees. {self._caught}"
        first = self.differences[0]
        more = len(self.differences) - 1
        others = f" (and {more} more)" if more else ""
        return f"NOT AS RECORDED: {first}{others}.{self._honest_reason}"

    @property
    def _caught(self) -> str:
        if self.odds is None:
            return "Nothing was computed again, so this says only that the records fit together."
        answer, whole, client, server = (
            f"{100 * p:.3g} %"
            for p in (self.odds.answer, self.odds.round, self.odds.client, self.odds.server)
        )
        return (
            "A change that all later records were made to fit would have been caught with"
            f" probability {answer} if it were in one client's answer in one round, {whole} in all"
            f" answers of a round, {client} in all answers of a client, {server} in a server's step"
            f" (seed {self.seed})."
        )

    @property
    def _honest_reason(self) -> str:
        if not self.versions:
            return ""
        differ = ", ".join(
            f"{name} {was} (here {now})" for name, (was, now) in self.versions.items()
        )
        return f" But it was computed with {differ}: other versions may honestly give other bytes."

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        odds = None if self.odds is None else self.odds.as_json()
        return {
            "run": self.run,
            "good": self.good,
            "digest": self.digest,
            "recorded": dict(self.recorded),
            "checked": dict(self.checked),
            "differences": [
                {"subject": d.subject, "where": d.where, "what": d.what} for d in self.differences
            ],
            "odds": odds,
            "seed": self.seed,
            "versions": {name: list(pair) for name, pair in self.versions.items()},
            "remarks": list(self.remarks),
            "sentence": self.sentence,
        }
