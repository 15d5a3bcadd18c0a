"""What is learned: the loss of a prediction and how it is scored."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Task(Protocol):
    """The loss and the metrics; methods take both from here."""

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        """The training loss; `target` is hard [n] or soft [n, K]."""

    def metrics(self, probs: Tensor, y: Tensor) -> dict[str, float]:
        """Scores of one client's predictions; `accuracy` is the one that is averaged."""


class Classification:
    """Cross-entropy, accuracy and negative log-likelihood."""

    def loss(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(logits, target, reduction=reduction)

    def metrics(self, probs: Tensor, y: Tensor) -> dict[str, float]:
        correct = (probs.argmax(-1) == y).double().mean()
        likelihood = probs.gather(-1, y[:, None]).clamp_min(1e-12)
        return {"accuracy": float(correct), "nll": float(-likelihood.double().log().mean())}
