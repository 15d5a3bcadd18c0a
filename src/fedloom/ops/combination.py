"""FedPAC's classifier combination: feature statistics of clients, and the weights they give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedloom.ops.prototypes import class_sums
from fedloom.ops.shared_qp import likely_supports
from fedloom.ops.simplex_qp import Distances, simplex_qp

FLOOR = 1e-6
"""Smallest eigenvalue of a feature second moment before it is inverted, relative to their mean."""


def head_statistics(z: Tensor, y: Tensor, classes: int, full: bool) -> dict[str, Tensor]:
    """One client's statistics of features z [n, d] with labels y [n].

    `counts` [K] of the classes; `h` [K, d], the rows P(y) E[f|y] (eq. 34); and `variance`, V (eq.
    44), or with `full` in its place `second` [d, d], the second moment E[f f'] (eq. 37), from which
    V follows in any metric (eq. 35).
    """
    wide = z.cpu().double()  # on the CPU, because not every device has float64
    sums, counts = class_sums(wide, y.cpu(), classes)
    h = sums / len(y)
    statistics = {"h": h}
    if full:
        statistics["second"] = wide.T @ wide / len(y)
    else:
        mean_square = (wide**2).sum(1).mean()  # over all samples: sum_y P(y) E[|f|^2 | y]
        statistics["variance"] = (mean_square - (h**2).sum()).clamp_min(0)
    statistics["counts"] = counts
    return {k: v.to(z.dtype) for k, v in statistics.items()}


def combination_weights(
    statistics: Mapping[str, Tensor], center: bool = False, drop_below: float = 0.0
) -> Tensor:
    """Row i: the weights of all heads in client i's (eq. 11), from stacked statistics [m, ...].

    Weights under `drop_below` are set to zero and the rest rescaled.
    """
    wide = {k: v.double() for k, v in statistics.items()}
    if center:
        wide = centered(wide)
    programs = combination_programs(wide)
    weights = torch.stack([simplex_qp(matrix, start) for matrix, start in programs])
    # Where all weights of a client are under the threshold, its largest ones stay.
    threshold = weights.amax(1, keepdim=True).clamp_max(drop_below)
    remaining = weights.where(weights >= threshold, 0.0)
    return remaining / remaining.sum(1, keepdim=True)


Programs = Iterator[tuple[Distances, Tensor | None]]


def combination_programs(statistics: Mapping[str, Tensor]) -> Programs:
    """For every client i the matrix diag(V/n) + D_i of its program (eq. 46), and a guess at its
    support."""
    return _full_programs(statistics) if "second" in statistics else _identity_programs(statistics)


def _identity_programs(statistics: Mapping[str, Tensor]) -> Programs:
    """With the identity in place of every client's E[f f'] (appendix A.5).

    As sum a = 1, a' D_i a = a' G a - 2 g_i' a + g_ii with the inner products G of all statistics:
    clients' programs differ in their linear part alone.
    """
    h, n = statistics["h"], _rows(statistics["counts"])  # [m, K, d], [m]
    gram = _gram(h)
    noise = statistics["variance"].clamp_min(0) / n  # eq. (44)
    supports = likely_supports(gram + noise.diag(), gram)
    for i in range(len(h)):
        yield Distances(gram, noise, i), None if supports is None else supports[i]  # eq. (45)


def _full_programs(statistics: Mapping[str, Tensor]) -> Programs:
    """In the metric of Lambda_i = E[f f'] of client i (appendix A.3)."""
    h, n = statistics["h"], _rows(statistics["counts"])  # [m, K, d], [m]
    second = (statistics["second"] + statistics["second"].mT) / 2  # noise makes it asymmetric
    for i in range(len(h)):
        white = _whitening(second[i])  # [d, d], Lambda_i^-1 = white white'
        g = h @ white
        spread = second.flatten(1) @ (white @ white.T).flatten()  # tr(Lambda_i^-1 E[f f'])
        variance = (spread - (g**2).sum((1, 2))).clamp_min(0)  # eq. (35)
        yield Distances(_gram(g), variance / n, i), None  # eq. (33)


def centered(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same statistics of f - E[f], with the mean over all clients' samples (Assumption 2)."""
    h, counts = statistics["h"], statistics["counts"]
    n, means = _rows(counts), h.sum(1)  # [m], [m, d]
    shift = n @ means / n.sum()
    prior = counts / n[:, None]
    moved = {**statistics, "h": h - prior[:, :, None] * shift}
    if "second" in statistics:
        cross = means[:, :, None] * shift
        moved["second"] = statistics["second"] - cross - cross.mT + shift[:, None] * shift
    else:
        mean_square = statistics["variance"] + (h**2).sum((1, 2))
        mean_square = mean_square - 2 * means @ shift + shift @ shift
        moved["variance"] = mean_square - (moved["h"] ** 2).sum((1, 2))
    return moved


def combined(weights: Tensor, tensors: Tensor) -> Tensor:
    """Row i: sum_j a_ij t_j of stacked tensors [m, ...] (eq. 4). Integers are rounded."""
    flat = weights @ tensors.reshape(len(tensors), -1).double()
    mixed = flat.reshape(len(weights), *tensors.shape[1:])
    if not tensors.is_floating_point():
        mixed = mixed.round()
    return mixed.to(tensors.dtype)


def _rows(counts: Tensor) -> Tensor:
    """Of clients with counts [m, K], [m]; at least one, for noise may leave none."""
    return counts.clamp_min(0).sum(1).clamp_min(1)


def _gram(h: Tensor) -> Tensor:
    """Inner products [m, m] of clients' statistics, taken about their mean for precision: only
    differences of statistics enter the program."""
    flat = (h - h.mean(0)).flatten(1)
    gram = flat @ flat.T
    return (gram + gram.T) / 2


def _whitening(second: Tensor) -> Tensor:
    """W with W W' the inverse of a second moment; its eigenvalues are floored first, because with
    fewer samples than dimensions some are zero."""
    values, vectors = torch.linalg.eigh(second)
    least = max(FLOOR * float(values.mean()), 1e-12)
    return torch.div(vectors, values.clamp_min(least).sqrt())
