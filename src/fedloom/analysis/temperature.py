"""One temperature fitted on validation data, which changes no argmax (Guo et al. 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, as_labels, as_logits

COLDEST, HOTTEST = 1e-3, 1e3
HALVINGS = 60


@dataclass(frozen=True)
class Temperature:
    """softmax(logits / value) has the least negative log-likelihood."""

    value: float
    at_limit: bool
    """No minimum inside 0.001..1000: every answer was right, or none better than chance."""
    nll_before: float
    nll_after: float
    n: int


def fit_temperature(logits: Array, labels: Array) -> Temperature:
    """Least-NLL temperature of validation logits (or log-probabilities) [n, C].

    In b = 1/T the loss is convex; its slope, mean(E_p[z] - z_y), is brought to zero by halving.

    >>> confident = torch.tensor([[4.0, 0.0]]).repeat(4, 1)  # sigmoid(4 / T) = 3/4: T = 4 / ln 3
    >>> round(fit_temperature(confident, torch.tensor([0, 0, 0, 1])).value, 6)
    3.640957
    """
    z = as_logits(logits)
    truth = as_labels(labels, len(z), z.shape[1])
    if _slope(z, truth, 1 / HOTTEST) >= 0:
        value, at_limit = HOTTEST, True
    elif _slope(z, truth, 1 / COLDEST) <= 0:
        value, at_limit = COLDEST, True
    else:
        value, at_limit = _flat_point(z, truth), False
    return Temperature(value, at_limit, _nll(z, truth), _nll(z / value, truth), len(z))


def tempered(logits: Array, temperature: float) -> Tensor:
    """Probabilities softmax(logits / temperature) in float64.

    >>> tempered(torch.tensor([[2.0, 0.0]]), 1e9)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return torch.softmax(as_logits(logits) / temperature, 1)


def _flat_point(z: Tensor, truth: Tensor) -> float:
    low, high = math.log(1 / HOTTEST), math.log(1 / COLDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _slope(z, truth, math.exp(middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp(-(low + high) / 2)


def _slope(z: Tensor, truth: Tensor, inverse: float) -> float:
    """Derivative of the mean NLL of softmax(z * inverse) in `inverse`."""
    mean = (torch.softmax(z * inverse, 1) * z).sum(1)
    return float((mean - z.gather(1, truth[:, None]).flatten()).mean())


def _nll(z: Tensor, truth: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(z, truth))
