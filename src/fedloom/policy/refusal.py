"""One rule that refuses a run."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.core.revelations import REVELATIONS


@dataclass(frozen=True)
class Refusal:
    """A rule of a site that refuses a run, in words that may leave the site."""

    rule: str
    """A revelation, which the policy's `allow` may name, or the limit that is exceeded."""
    sentence: str
    """What is refused and what to do; none of the site's numbers, for the server reads it."""
    detail: str = ""
    """The site's numbers that decided; for its operator, and for a simulation."""

    @property
    def revelation(self) -> str:
        """What it would reveal; empty of a limit."""
        return REVELATIONS.get(self.rule, "")

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"

    def in_full(self) -> str:
        """With the site's numbers and what it would reveal, for those who may read both."""
        numbers = f" ({self.detail})" if self.detail else ""
        return f"{self}{numbers}{'. ' if self.revelation else ''}{self.revelation}"
