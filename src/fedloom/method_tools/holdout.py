"""Validation rows of a client that was given none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedloom.core.data import Split


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Some rows of a split, as a split."""

    whole: Split
    rows: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def augmented(self) -> bool:
        """Does `x` with a generator differ from `x` without? As the whole split says."""
        return self.whole.augmented

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        """Inputs of rows, which are counted within this part."""
        return self.whole.x(self.rows[idx], gen)


def hold_out(split: Split, share: float, gen: Generator) -> tuple[Split, Split]:
    """The rows that remain for training, and a random share of the rows that is held out.

    Each has at least one row; where there is only a single row, it is in both.

    >>> from fedloom.core.data import HeldRows
    >>> ten = HeldRows(torch.zeros(10, 1), torch.zeros(10))
    >>> remaining, held_out = hold_out(ten, 0.2, torch.Generator())
    >>> len(remaining), len(held_out)
    (8, 2)
    """
    n = len(split)
    if n < 2:
        return split, split
    count = min(max(1, round(share * n)), n - 1)
    order = torch.randperm(n, generator=gen)
    remaining = order[count:].sort().values
    held_out = order[:count].sort().values
    return (
        SomeRows(split, remaining, split.y[remaining]),
        SomeRows(split, held_out, split.y[held_out]),
    )
