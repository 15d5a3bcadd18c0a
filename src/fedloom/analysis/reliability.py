"""Calibration of predicted probabilities (Guo et al. 2017; FedCR 5.1 argues about it).

A sample's confidence is its largest probability. Averaging probabilities lowers confidence, so the
error can rise by under-confidence while accuracy grows: read it with the sign of the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_probabilities
from fedloom.errors import BadInput

BINS = 15


@dataclass(frozen=True, eq=False)
class Reliability:
    """The table behind a reliability diagram; empty bins have NaN confidence and accuracy."""

    edges: Tensor
    """[B + 1]; a bin holds its upper edge and not its lower."""
    counts: Tensor
    """[B]."""
    confidence: Tensor
    """[B], mean confidence in the bin."""
    accuracy: Tensor
    """[B], share of right answers in the bin."""
    noise: Tensor
    """[B], mean |accuracy - confidence| of a calibrated model with these confidences."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Errors of calibration, proper scores, and how much of the error would be mere noise."""

    ece: float
    """Mean |accuracy - confidence| over samples' bins."""
    mce: float
    """The largest over bins that are not empty."""
    rmsce: float
    """Root of the mean square over samples' bins."""
    gap: float
    """Mean confidence less accuracy: positive is over-confident."""
    accuracy: float
    nll: float
    """Mean negative log-likelihood, in nats; infinite if a truth was given probability zero."""
    brier: float
    """Mean squared distance between probabilities and the one-hot truth, in 0..2."""
    n: int
    noise: float
    """The ece that a calibrated model with these confidences has in the mean."""
    table: Reliability


@dataclass(frozen=True, eq=False)
class ClientCalibration:
    """Over all clients' samples together, and client by client."""

    pooled: Calibration
    clients: tuple[Calibration, ...]
    mean_ece: float
    """Unweighted mean over clients: larger than the pooled one by small-sample noise."""
    mean_noise: float
    """Unweighted mean of the clients' noise, to be held against mean_ece."""


def calibration(
    probabilities: Array, labels: Array, bins: int = BINS, equal_mass: bool = False
) -> Calibration:
    """Calibration of probabilities [n, C]; bins of equal width, or of equally many samples.

    >>> p = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
    >>> score = calibration(p, torch.tensor([0] * 60 + [1] * 40))
    >>> round(score.ece, 6), round(score.gap, 6), round(score.noise, 6)
    (0.2, 0.2, 0.031915)
    """
    p = as_probabilities(probabilities)
    truth = as_labels(labels, len(p), p.shape[1])
    confidence, answer = p.max(1)
    right = (answer == truth).double()
    table = _table(confidence, right, bins, equal_mass)
    weight = table.counts.double() / len(p)
    apart = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    of_truth = p.gather(1, truth[:, None]).flatten()
    return Calibration(
        ece=float(weight @ apart),
        mce=float(apart.max()),
        rmsce=math.sqrt(float(weight @ apart.square())),
        gap=float((confidence - right).mean()),
        accuracy=float(right.mean()),
        nll=float(-of_truth.log().mean()),
        brier=float((p.square().sum(1) - 2 * of_truth + 1).mean()),
        n=len(p),
        noise=float(weight @ table.noise.nan_to_num(0.0)),
        table=table,
    )


def calibration_of_clients(
    clients: Sequence[tuple[Array, Array]], bins: int = BINS, equal_mass: bool = False
) -> ClientCalibration:
    """Calibration over pairs of probabilities and labels, one pair per client.

    >>> even = torch.tensor([[0.5, 0.5]]).repeat(4, 1)
    >>> right, wrong = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    >>> scores = calibration_of_clients([(even, right), (even, wrong)])
    >>> scores.pooled.ece, scores.mean_ece
    (0.0, 0.5)
    """
    if not clients:
        raise BadInput("calibration was given no clients; give at least one")
    each = tuple(calibration(p, y, bins, equal_mass) for p, y in clients)
    probabilities = [as_probabilities(p) for p, _ in clients]
    if len({p.shape[1] for p in probabilities}) > 1:
        raise BadInput("clients predict different numbers of classes; pool clients of one task")
    truths = [as_labels(y, one.n) for (_, y), one in zip(clients, each, strict=True)]
    return ClientCalibration(
        pooled=calibration(torch.cat(probabilities), torch.cat(truths), bins, equal_mass),
        clients=each,
        mean_ece=sum(one.ece for one in each) / len(each),
        mean_noise=sum(one.noise for one in each) / len(each),
    )


def _table(confidence: Tensor, right: Tensor, bins: int, equal_mass: bool) -> Reliability:
    if bins < 1:
        raise BadInput(f"bins is {bins}; a reliability table needs at least one")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    if equal_mass:
        edges[1:-1] = confidence.quantile(edges[1:-1])
        place = torch.searchsorted(edges[1:-1].contiguous(), confidence)
    else:
        place = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    counts = place.bincount(minlength=bins)
    means = [place.bincount(weights=x, minlength=bins) / counts for x in (confidence, right)]
    spread = place.bincount(weights=confidence * (1 - confidence), minlength=bins)
    # the mean of |x| is sqrt(2 / pi) standard deviations; x is a bin's accuracy - confidence
    noise = (2 / math.pi * spread).sqrt() / counts
    return Reliability(edges, counts, means[0], means[1], noise)
