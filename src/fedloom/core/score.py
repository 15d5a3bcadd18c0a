"""What one client's model scores: one moment, one split, one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Moment = Literal["received", "trained", "adapted", "final"]
"""The model as it arrived, after local training, after the method's fine-tuning, or as the client
keeps it at the end of a run."""
SplitName = Literal["train", "val", "test"]
PERSONAL, GLOBAL = "personal", "global"


@dataclass(frozen=True)
class ClientScore:
    """Measured at one client; the only form in which scores travel from there to the run."""

    moment: Moment
    split: SplitName
    rows: int
    """How many rows were scored."""
    metrics: Mapping[str, float]
    """By name; the task's own are always among them."""
    model: str = PERSONAL
    """`personal`, `global`, or the name of a single head that the method shows (`views`)."""
