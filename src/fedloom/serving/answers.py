"""Predictions with the names of what was predicted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedloom.core.task import Targets


@dataclass(frozen=True)
class Answers:
    """Predictions [n, K] of one model, as its task means them."""

    predictions: Tensor
    predicts: Targets
    classes: tuple[str, ...]
    """The name of every column, where the data names them."""

    def __len__(self) -> int:
        return len(self.predictions)

    @property
    def is_class(self) -> bool:
        """Is the answer one class of several, with probabilities?"""
        return self.predicts == "classes" and self.predictions.ndim == 2

    @property
    def columns(self) -> list[str]:
        """Names of the fields of an answer."""
        values = self.predictions.reshape(len(self), -1).shape[1]
        if self.is_class:
            return ["prediction", "probability", *(f"p({name})" for name in self._names(values))]
        return list(self.classes) if len(self.classes) == values else self._numbered(values)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row's answer, field by field."""
        columns = self.columns
        for values in self.predictions.reshape(len(self), -1).tolist():
            first: list[Any] = []
            if self.is_class:
                best = max(range(len(values)), key=values.__getitem__)
                first = [self._names(len(values))[best], values[best]]
            yield dict(zip(columns, [*first, *values], strict=True))

    def to_csv(self, ids: Sequence[str], id_name: str = "row") -> str:
        """A table with a line for every row, which `ids` name."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([id_name, *self.columns])
        for row, answer in zip(ids, self.rows(), strict=True):
            writer.writerow([row, *map(_written, answer.values())])
        return text.getvalue()

    def _names(self, count: int) -> tuple[str, ...]:
        return self.classes if len(self.classes) == count else tuple(map(str, range(count)))

    def _numbered(self, count: int) -> list[str]:
        return ["prediction"] if count == 1 else [f"prediction_{i}" for i in range(count)]


def _written(value: Any) -> Any:
    """Numbers with as many digits as 32 bits hold."""
    return f"{value:.7g}" if isinstance(value, float) else value
