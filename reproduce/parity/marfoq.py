"""What both programs of Marfoq et al. need: rows that come with their indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from reproduce.parity.harness import Batches

UNLOGGED = {
    "log_freq": 100,
    "global_train_logger": mock.MagicMock(),
    "global_test_logger": mock.MagicMock(),
    "seed": 0,
}
"""Arguments of their servers that decide nothing here."""


class IndexedBatches(Batches):
    """Inputs, labels and row indices."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # type: ignore[override]
        epoch = self.queue.pop(0) if self.queue else self.in_order
        return iter([(self.rows.x(idx), self.rows.y[idx], idx) for idx in epoch])


def learner(kind: type, model: nn.Module, lr: float) -> Any:
    """One of their learners, with the losses of single rows and plain gradient steps."""
    return kind(
        model=model,
        criterion=nn.CrossEntropyLoss(reduction="none"),
        metric=lambda y_pred, y: (y_pred.argmax(1) == y).float().sum(),
        device="cpu",
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
    )
