"""FedPAC's classifier combination: feature statistics of clients, and the weights they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedloom.ops.prototypes import class_sums
from fedloom.ops.simplex_qp import simplex_qp

FLOOR = 1e-6
"""Smallest eigenvalue of a feature second moment before it is inverted, relative to their mean."""


def head_statistics(z: Tensor, y: Tensor, classes: int, full: bool) -> dict[str, Tensor]:
    """Class counts and h = P(y) E[f|y] [K, d] (eq. 34); the variance V (eq. 44), or with `full`
    the second moment [d, d] (eq. 37), from which V follows in any metric (eq. 35)."""
    wide = z.cpu().double()  # not every device has float64
    sums, counts = class_sums(wide, y.cpu(), classes)
    h = sums / len(y)
    if full:
        found = {"h": h, "second": wide.T @ wide / len(y)}
    else:  # sum_y P(y) E[|f|^2 | y] is the mean over all samples
        found = {"h": h, "variance": ((wide**2).sum(1).mean() - (h**2).sum()).clamp_min(0)}
    return {**{k: v.to(z.dtype) for k, v in found.items()}, "counts": counts.to(z.dtype)}


def combination_weights(
    statistics: Mapping[str, Tensor], center: bool = False, drop_below: float = 0.0
) -> Tensor:
    """Row i: the weights of all heads in client i's (eq. 11), from stacked statistics [m, ...].

    Weights under `drop_below` are set to zero and the rest rescaled.
    """
    wide = {k: v.double() for k, v in statistics.items()}
    matrices = combination_matrices(centered(wide) if center else wide)
    weights = torch.stack([simplex_qp(matrix) for matrix in matrices])
    lowest = weights.amax(1, keepdim=True).clamp_max(drop_below)  # never all of them
    kept = weights.where(weights >= lowest, 0.0)
    return kept / kept.sum(1, keepdim=True)


def combination_matrices(statistics: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """For every client i the matrix diag(V/n) + D_i of its program (eq. 46)."""
    h, n = statistics["h"], statistics["counts"].sum(1)  # [m, K, d], [m]
    if "second" not in statistics:
        gram, noise = _gram(h), statistics["variance"].clamp_min(0) / n
        for i in range(len(h)):
            yield _bias(gram, i) + noise.diag()  # eq. (44), (45)
        return
    second = (statistics["second"] + statistics["second"].mT) / 2
    for i in range(len(h)):
        white = _whitening(second[i])  # [d, d], Lambda_i^-1 = white white'
        g = h @ white
        spread = second.flatten(1) @ (white @ white.T).flatten()  # tr(Lambda_i^-1 E[ff'])
        variance = (spread - (g**2).sum((1, 2))).clamp_min(0)  # eq. (35)
        yield _bias(_gram(g), i) + (variance / n).diag()  # eq. (33)


def centered(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same statistics of f - E[f], with the mean over all clients' samples (Assumption 2)."""
    h, counts = statistics["h"], statistics["counts"]
    n, means = counts.sum(1), h.sum(1)  # [m], [m, d]
    shift = n @ means / n.sum()
    moved = {**statistics, "h": h - (counts / n[:, None])[:, :, None] * shift}
    if "second" in statistics:
        cross = means[:, :, None] * shift
        moved["second"] = statistics["second"] - cross - cross.mT + shift[:, None] * shift
    else:
        power = statistics["variance"] + (h**2).sum((1, 2)) - 2 * means @ shift + shift @ shift
        moved["variance"] = power - (moved["h"] ** 2).sum((1, 2))
    return moved


def combined(weights: Tensor, tensors: Tensor) -> Tensor:
    """Row i: sum_j a_ij t_j of stacked tensors [m, ...] (eq. 4)."""
    flat = weights @ tensors.reshape(len(tensors), -1).double()
    mixed = flat.reshape(len(weights), *tensors.shape[1:])
    if not tensors.is_floating_point():
        mixed = mixed.round()
    return mixed.to(tensors.dtype)


def _gram(h: Tensor) -> Tensor:
    """Inner products of clients' statistics [m, m], about their mean: only gaps matter."""
    flat = (h - h.mean(0)).flatten(1)
    gram = flat @ flat.T
    return (gram + gram.T) / 2


def _bias(gram: Tensor, i: int) -> Tensor:
    """D_i[j, j'] = <h_i - h_j, h_i - h_j'> from inner products; row and column i are zero."""
    return gram - gram[i] - gram[i][:, None] + gram[i, i]


def _whitening(second: Tensor) -> Tensor:
    """W with W W' the inverse of a second moment, floored: fewer samples than d leave it flat."""
    values, vectors = torch.linalg.eigh(second)
    least = max(FLOOR * float(values.mean()), 1e-12)
    return torch.div(vectors, values.clamp_min(least).sqrt())
