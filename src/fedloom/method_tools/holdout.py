"""Validation rows of a client that was given none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from fedloom.core.data import Split


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of a split."""

    whole: Split
    rows: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def augmented(self) -> bool:
        """As the whole."""
        return self.whole.augmented

    def x(self, idx: Tensor, gen: Generator | None = None) -> Tensor:
        """Inputs by the rows of this part."""
        return self.whole.x(self.rows[idx], gen)


def hold_out(split: Split, share: float, gen: Generator) -> tuple[Split, Split]:
    """The rest and a share of the rows, at least one; a single row is both.

    >>> ten = Part(None, torch.arange(10), torch.zeros(10))
    >>> [len(part) for part in hold_out(ten, 0.2, torch.Generator())]
    [8, 2]
    """
    n = len(split)
    if n < 2:
        return split, split
    held = min(max(1, round(share * n)), n - 1)
    order = torch.randperm(n, generator=gen)
    rest, out = (
        Part(split, rows, split.y[rows])
        for rows in (order[held:].sort().values, order[:held].sort().values)
    )
    return rest, out
