"""What `fedloom deploy try` shows, as its process hands it over; imports no torch."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fedloom.deploy.gate.form import Objection


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SentTensor(_Record):
    """One tensor that would leave, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    smallest: float | None
    largest: float | None


class Step(_Record):
    """One answer."""

    name: str
    tensors: tuple[SentTensor, ...]
    rows: int
    state: str
    """sha256 of what stays; empty where that is nothing."""
    anew: bool
    metrics: dict[str, float]
    scores: tuple[str, ...]
    bytes: int
    """Of all of it, as the audit log will have them."""
    sha256: str
    """The same."""


class Attempt(_Record):
    """How the site would introduce itself, and its first answers."""

    refusals: tuple[Objection, ...] = ()
    """By the site's policy; then nothing was computed."""
    hello: dict[str, Any] = {}
    hello_bytes: int = 0
    steps: tuple[Step, ...] = ()
    later: tuple[str, ...] = ()
    """Moments that the server scores after a round, under a model that all sites made."""
    later_splits: tuple[str, ...] = ()
