"""FedPAC's classifier combination: feature statistics of clients, and the weights they give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedloom.ops.prototypes import class_sums
from fedloom.ops.simplex_qp import Floats, simplex_qp

NEGLIGIBLE = 1e-3
"""Weights below this are dropped, as in the published code."""
RIDGE = 1e-6
"""Relative ridge on a client's feature second moment before it is inverted."""


def head_statistics(z: Tensor, y: Tensor, classes: int, full: bool) -> dict[str, Tensor]:
    """h = P(y) E[f|y] [K, d] (eq. 34) and n; the variance V (eq. 44), or with `full` the second
    moment [d, d] (eq. 37) from which V follows for any metric (eq. 35)."""
    sums, _ = class_sums(z, y, classes)
    h = sums / len(y)
    if full:
        return {"h": h, "n": torch.tensor(float(len(y))), "second": z.T @ z / len(y)}
    variance = (z**2).sum(1).mean() - (h**2).sum()
    return {"h": h, "n": torch.tensor(float(len(y))), "variance": variance.clamp_min(0)}


def combination_weights(statistics: Mapping[str, Tensor]) -> Floats:
    """Row i: the weights of all heads in client i's (eq. 11), from stacked statistics [m, ...]."""
    h = statistics["h"].double()  # [m, K, d]
    n = statistics["n"].double()
    m = len(h)
    weights = np.zeros((m, m))
    for i in range(m):
        if "second" in statistics:
            bias, variance = _in_metric_of(i, h, statistics["second"].double())
        else:
            flat = (h[i] - h).flatten(1)
            bias, variance = flat @ flat.T, statistics["variance"].double()
        weights[i] = _without_dust(simplex_qp((bias + torch.diag(variance / n)).numpy()))
    return weights


def _in_metric_of(i: int, h: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """D (eq. 33) and V (eq. 35) with client i's inverse second moment."""
    d = h.shape[-1]
    ridge = RIDGE * second[i].diagonal().mean().clamp_min(1e-12)
    inverse = torch.linalg.inv(second[i] + ridge * torch.eye(d, dtype=h.dtype))
    gap = h[i] - h  # [m, K, d]
    bias = torch.einsum("mkd,de,nke->mn", gap, inverse, gap)
    spread = torch.einsum("de,med->m", inverse, second)
    variance = spread - torch.einsum("mkd,de,mke->m", h, inverse, h)
    return (bias + bias.T) / 2, variance.clamp_min(0)


def _without_dust(a: Floats) -> Floats:
    kept = np.where(a < NEGLIGIBLE, 0.0, a)
    result: Floats = kept / kept.sum()
    return result
