"""What may leave a site, its names, shapes and types, and what was found out about a proposal.

Imports no torch: the gate compares with it, `derive` makes it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

ADMITTED = "admitted"
"""Event of the audit log: the policy let a run pass that nobody was asked about."""

OVERHEAD = 65_536
"""Bytes that a message may have beside its tensors: names, scores, Flower's own headers."""

SCORINGS = 2
"""Times that a server asks for scores after a step: of who took part in it, and of who did not."""


class TensorForm(BaseModel):
    """One tensor, without its values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of its values."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


Upload = dict[str, dict[str, TensorForm]]
"""Slice -> key -> tensor, in the order in which an honest client sends them."""


class Form(BaseModel):
    """All that an answer of this site may hold in a run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    networks: int
    """Client i has network i modulo this."""
    uploads: dict[str, tuple[Upload, ...]]
    """Network and step (`step_name`) -> what a client of it may send."""
    steps: dict[str, int]
    """Step without network -> how often the run has it."""
    scores: dict[str, tuple[str, ...]]
    """Model that is scored -> names of its metrics."""
    splits: tuple[str, ...]
    """Of the site's rows, which are scored."""
    hides_rows: bool = False
    """With secure aggregation no answer tells how many rows the site has."""

    def uploads_of(self, cid: int, kind: str, owner: str) -> tuple[Upload, ...]:
        """What a client may send in a step; nothing is known of a step that was not played."""
        if kind == "adapt":  # the last step, in which nothing goes up
            return ({},)
        return self.uploads.get(step_name(cid % self.networks, kind, owner), ())

    @property
    def bytes_of_steps(self) -> dict[str, int]:
        """Step -> the most bytes of tensors that one answer may have."""
        most = dict.fromkeys(self.steps, 0)
        for name, uploads in self.uploads.items():
            step = name.partition(" ")[2]
            most[step] = max(most[step], *map(upload_bytes, uploads))
        return most

    @property
    def bytes_of_tensors(self) -> int:
        """Of the tensors of the largest answer."""
        return max(self.bytes_of_steps.values(), default=0)

    @property
    def most_bytes(self) -> int:
        """Of an answer with all that is in it."""
        return self.bytes_of_tensors + OVERHEAD

    @property
    def bytes_in_all(self) -> int:
        """Of the tensors of all answers, if the site takes part in every step."""
        return sum(self.steps[step] * most for step, most in self.bytes_of_steps.items())

    def most_answers(self, task: str, step: str) -> int | None:
        """How many answers to such orders the run has; None: they hold nothing to be counted."""
        if task == "save":
            return None
        return self.steps[step] * (SCORINGS if task == "evaluate" else 1)


def step_name(network: int, kind: str, owner: str) -> str:
    """One kind of step of clients with one network."""
    return f"{network} {kind} {owner}"


def upload_bytes(upload: Mapping[str, Mapping[str, TensorForm]]) -> int:
    """Of all its tensors."""
    return sum(tensor.bytes for tree in upload.values() for tensor in tree.values())


class Objection(BaseModel):
    """One rule that a proposal breaks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: str
    sentence: str
    """May leave the site."""
    in_full: str
    """With the site's own numbers; for its operator."""


class Assessment(BaseModel):
    """What a process that may read the site's data says about a proposal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    refusals: tuple[Objection, ...] = ()
    """By the site's policy; empty: it permits the run."""
    revelations: tuple[str, ...] = ()
    """One sentence for each thing that the method can reveal."""
    training: dict[str, str] = {}
    """Key -> the number that it trains with."""
    hello: dict[str, Any] | None = None
    """How the site introduces itself, exactly."""
    rows: int = 0
    """All rows of the site: no answer may claim more."""
    form: Form | None = None
    data: str = ""
    """Version of the site's data before it was looked at; empty: not known."""
    needs_app: bool = False
    """Nothing more can be known before code of the app may run here."""
