"""How often an experiment was served and how many bytes of it left, on the site's disk."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedloom.errors import BadInput
from fedloom.files import write_json


class Count(BaseModel):
    """Of one experiment."""

    model_config = ConfigDict(extra="forbid")

    orders: dict[str, int] = Field(default_factory=dict)
    """Task and kind of step -> how many were let in."""
    answered: dict[str, list[str]] = Field(default_factory=dict)
    """Task and step -> the orders whose answers left, by their digests."""
    bytes: int = 0
    """Sent in all."""


_COUNTS = TypeAdapter(dict[str, Count])


class Counters:
    """Counts of all experiments, `state/counters.json`; written before what they count happens."""

    def __init__(self, state: Path) -> None:
        self.file = state / "counters.json"

    def of(self, experiment: str) -> Count:
        """So far; an unknown experiment has none."""
        return self._read().get(experiment, Count())

    def experiments(self) -> set[str]:
        """All that were ever served."""
        return set(self._read())

    def add_order(self, experiment: str, name: str) -> None:
        """One more order is let in."""
        counts = self._read()
        count = counts.setdefault(experiment, Count())
        count.orders[name] = count.orders.get(name, 0) + 1
        self._write(counts)

    def add_answer(self, experiment: str, sent: int, name: str, order: str | None) -> None:
        """So many bytes leave; `order` is what they answer, None: they say that there is no
        answer."""
        counts = self._read()
        count = counts.setdefault(experiment, Count())
        count.bytes += sent
        answered = count.answered.setdefault(name, [])
        if order is not None and order not in answered:
            answered.append(order)
        self._write(counts)

    def _read(self) -> dict[str, Count]:
        if not self.file.exists():
            return {}
        try:
            return _COUNTS.validate_python(json.loads(self.file.read_text(encoding="utf-8")))
        except ValueError:
            raise BadInput(f"{self.file} is damaged; restore it") from None

    def _write(self, counts: dict[str, Count]) -> None:
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(self.file, {name: count.model_dump() for name, count in counts.items()})
