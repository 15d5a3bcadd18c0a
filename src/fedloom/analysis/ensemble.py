"""Monte-Carlo ensembles of one model (FedCR 5.1): averages of probabilities and of logits.

The paper averages probabilities over samples z ~ N(mu(x), sigma(x)^2); its public code averages
logits. The two differ, even in the class they choose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_logits
from fedloom.analysis.reliability import BINS, Calibration, calibration
from fedloom.errors import BadInput


@dataclass(frozen=True, eq=False)
class EnsembleCalibration:
    """The same samples predicted in three ways."""

    single: Calibration | None
    """One deterministic pass (z = mu), if its logits were given."""
    probability_average: Calibration
    """As in the paper."""
    logit_average: Calibration
    """As in the public code."""
    disagreement: float
    """Share of samples for which the two averages choose different classes."""
    members: int
    n: int


def probability_average(logits: Array) -> Tensor:
    """Mean over members of softmax(logits), [S, n, C] to [n, C].

    >>> three = torch.tensor([[[9.0, 0]], [[0, 2]], [[0, 2]]])
    >>> [round(float(p), 3) for p in probability_average(three)[0]]
    [0.413, 0.587]
    """
    return torch.softmax(_members(logits), 2).mean(0)


def logit_average(logits: Array) -> Tensor:
    """softmax of the members' mean logits, [S, n, C] to [n, C].

    >>> three = torch.tensor([[[9.0, 0]], [[0, 2]], [[0, 2]]])
    >>> [round(float(p), 3) for p in logit_average(three)[0]]
    [0.841, 0.159]
    """
    return torch.softmax(_members(logits).mean(0), 1)


def ensemble_calibration(
    logits: Array, labels: Array, single: Array | None = None, bins: int = BINS
) -> EnsembleCalibration:
    """Calibration of an ensemble's logits [S, n, C], beside one deterministic pass [n, C].

    >>> three = torch.tensor([[[9.0, 0]], [[0, 2]], [[0, 2]]])
    >>> score = ensemble_calibration(three, torch.tensor([1]))
    >>> score.probability_average.accuracy, score.logit_average.accuracy, score.disagreement
    (1.0, 0.0, 1.0)
    """
    by_probability, by_logit = probability_average(logits), logit_average(logits)
    alone = None
    if single is not None:
        passed = as_logits(single)
        if passed.shape != by_logit.shape:
            raise BadInput(
                f"the single pass has shape {tuple(passed.shape)}, the ensemble's members"
                f" {tuple(by_logit.shape)}; both must predict the same samples"
            )
        alone = calibration(torch.softmax(passed, 1), labels, bins)
    return EnsembleCalibration(
        single=alone,
        probability_average=calibration(by_probability, labels, bins),
        logit_average=calibration(by_logit, labels, bins),
        disagreement=float((by_probability.argmax(1) != by_logit.argmax(1)).double().mean()),
        members=len(logits),
        n=len(by_logit),
    )


def _members(logits: Array) -> Tensor:
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else np.shape(logits)
    if len(shape) != 3:
        raise BadInput(f"an ensemble's logits have shape {shape}; give [members, n, classes]")
    flat = logits.reshape(shape[0] * shape[1], shape[2])
    return as_logits(flat).reshape(shape)
