"""The fast probe: ridge multinomial logistic regression, whose optimum is unique.

    min_W  mean cross-entropy over n rows + lam / (2 n) |W|^2

Convex, so that neither a seed nor a learning rate enters the number it gives.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.analysis.arrays import Array, as_matrix, same_width
from fedloom.analysis.geometry import gram_matrix, in_few_columns
from fedloom.analysis.probe import Fitted, Whitening, positive, whitened
from fedloom.errors import BadInput

SMALL = 128
"""With so few rows, a product with one number for each pair of them costs no more than a call."""


@dataclass(frozen=True)
class RidgeProbe:
    """Nesterov's iteration until the weights are within `tolerance` of the optimum, or as often as
    `iterations` allows.

    The bias is penalised like a weight. With `free_bias` it is not, and a class that the training
    rows lack gets probability zero: a code in which that class comes up later is infinitely long.

    >>> x, y = torch.zeros(10, 1, dtype=torch.float64), torch.tensor([0] * 7 + [1] * 2 + [2])
    >>> RidgeProbe(free_bias=True).fit(x, y, 3)(x[:1]).exp().round(decimals=3)
    tensor([[0.7000, 0.2000, 0.1000]], dtype=torch.float64)
    """

    lam: float = 1.0
    free_bias: bool = False
    iterations: int = 200
    tolerance: float = 1e-3
    seeds: int = 1
    nested: bool = True
    whiten: Whitening = "dimension"

    def __post_init__(self) -> None:
        positive(lam=self.lam, iterations=self.iterations, seeds=self.seeds)

    def prepare(self, x: Tensor, pool: int, trained: int) -> Tensor:
        """Whitened rows of mean square norm one. The optimum is a sum of rows that are trained on:
        where these are most of all, in as many columns. Of many others, each of which is read by
        one fit only, the columns would cost more than they save."""
        rows = whitened(x, pool, self.whiten).div_(sqrt(x.shape[1]))
        return in_few_columns(rows, trained) if 3 * trained > 2 * len(rows) else rows

    def fit(self, x: Tensor, y: Tensor, classes: int, key: Hashable = None) -> Fitted:
        """The optimum for these rows; `key` changes nothing."""
        wide = len(x) <= max(x.shape[1], SMALL) and not self.free_bias
        # Classes come first everywhere: products and softmax are many times slower in few columns.
        targets = F.one_hot(y, classes).to(x).T.contiguous()
        return (self._in_span if wide else self._in_axes)(x, y, targets)

    def _in_span(self, x: Tensor, y: Tensor, targets: Tensor) -> Fitted:
        """By the rows themselves, of which the optimum is a sum: for few rows, or wide ones."""
        shares = self._shares_of_rows(1 + gram_matrix(x), targets)
        slopes, bias = shares @ x, shares.sum(1, keepdim=True)
        return lambda rows: F.log_softmax(slopes @ rows.T + bias, 0).T

    def _in_axes(self, x: Tensor, y: Tensor, targets: Tensor) -> Fitted:
        """By the principal axes of the rows: for more rows than columns, or a free bias."""
        classes, n = targets.shape
        centre = x.mean(0) if self.free_bias else torch.zeros_like(x[0])
        # Centred features and a free bias do not interact, so that it can be an axis of its own.
        axes, curvature = principal_axes(x - centre if self.free_bias else _with_ones(x))
        penalty = torch.full_like(curvature, self.lam / n)
        absent = torch.zeros(classes, 1, dtype=x.dtype)
        if self.free_bias:
            curvature = torch.cat([curvature, curvature.new_ones(1)])
            penalty = torch.cat([penalty, penalty.new_zeros(1)])
            absent[torch.bincount(y, minlength=classes) == 0] = -torch.inf

        def turned(rows: Tensor) -> Tensor:
            return _with_ones((rows - centre) @ axes) if self.free_bias else _with_ones(rows) @ axes

        weights = self._optimum(turned(x), targets, curvature, penalty, absent)
        return lambda rows: F.log_softmax(weights @ turned(rows).T + absent, 0).T

    def _optimum(
        self, x: Tensor, targets: Tensor, curvature: Tensor, penalty: Tensor, absent: Tensor
    ) -> Tensor:
        """Weights [C, axes] from rows in principal axes.

        There x'x/n is diagonal, and the Hessian lies below curvature / 2 + penalty (Böhning 1992):
        every axis has its own longest safe step. Momentum starts over when it points uphill. As
        the objective is lam/n strongly convex (but for a free bias), |gradient| n / lam bounds the
        way still to go.
        """
        n, momentum = len(x), 1.0
        step = 1 / (curvature / 2 + penalty)
        at = ahead = x.new_zeros(len(targets), x.shape[1])
        for _ in range(self.iterations):
            error = (ahead @ x.T).add_(absent).softmax(0).sub_(targets)
            gradient = torch.addmm(penalty * ahead, error, x, alpha=1 / n)
            if float(gradient.norm()) * n <= self.tolerance * self.lam:
                return ahead
            moved = ahead - step * gradient
            stride = moved - at
            if float((stride * gradient).sum()) > 0:
                momentum = 1.0
            following = (1 + sqrt(1 + 4 * momentum**2)) / 2
            ahead = moved + (momentum - 1) / following * stride
            at, momentum = moved, following
        return at

    def _shares_of_rows(self, gram: Tensor, targets: Tensor) -> Tensor:
        """A [C, n] of the optimum x'A', from K = xx': for wide rows.

        The iteration of `_optimum` in other coordinates. With r = error + lam A the gradient is
        x'r / n and the longest safe step x'Pr, P = (K/2 + lam)^-1. As K P r = 2 r - 2 lam P r, one
        product with P gives the step's logits too. P is at most 1/lam: n^2 |gradient|^2 = r'K r is
        at least lam r'K P r, and is computed only where that allows to stop. Shares and their
        logits lie in one tensor each, because with few rows the calls are what takes time.
        """
        lam, momentum = self.lam, 1.0
        enough = (self.tolerance * lam) ** 2
        bound = gram / 2
        bound.diagonal().add_(lam)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(bound))
        at = ahead = targets.new_zeros(2, *targets.shape)
        step = torch.empty_like(at)
        step_shares, step_logits = step
        for _ in range(self.iterations):
            shares, logits = ahead.unbind()
            slope = logits.softmax(0).sub_(targets).add_(shares, alpha=lam)
            torch.mm(slope, inverse, out=step_shares)
            torch.add(slope, step_shares, alpha=-lam, out=step_logits).mul_(2)
            near = lam * _inner(slope, step_logits) <= enough
            if near and _inner(slope, slope @ gram) <= enough:
                return shares
            moved = ahead - step
            stride = moved - at
            if _inner(stride[1], slope) > 0:
                momentum = 1.0
            following = (1 + sqrt(1 + 4 * momentum**2)) / 2
            ahead = torch.add(moved, stride, alpha=(momentum - 1) / following)
            at, momentum = moved, following
        return at[0]


def _inner(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.flatten(), b.flatten()))


def principal_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal axes [d, min(n, d)] that span the rows, and the eigenvalues of x'x/n, rising.

    >>> axes, values = principal_axes(torch.tensor([[0.0, 3.0, 4.0]]))
    >>> values, axes.abs().squeeze()
    (tensor([25.]), tensor([0.0000, 0.6000, 0.8000]))
    """
    n, d = x.shape
    span = torch.linalg.qr(x.T).Q if d > n else None
    inside = x if span is None else x @ span
    values, turn = torch.linalg.eigh(inside.T @ inside / n)
    return turn if span is None else span @ turn, values.clamp(min=0)


def shared_components(features: Sequence[Array], count: int) -> list[Tensor]:
    """Several matrices of one layer in the `count` principal axes of all their rows together.

    Columns are standardised first, by one mean and spread for all matrices. Measure the result with
    RidgeProbe(whiten="scalar"): whitened per dimension, the last axis would weigh as much as the
    first.

    >>> before = torch.tensor([[3.0, 3.0], [-3.0, -3.0]])
    >>> both = shared_components([before, 2 * before], 1)
    >>> [round(abs(float(part[0])), 3) for part in both]
    [0.894, 1.789]
    """
    parts = [as_matrix(z) for z in features]
    same_width(*parts)
    rows = whitened(torch.cat(parts), sum(map(len, parts)), "dimension")
    most = min(rows.shape)
    if not 1 <= count <= most:
        raise BadInput(f"{count} components of {tuple(rows.shape)} features; there are 1 to {most}")
    axes, _ = principal_axes(rows)
    return list(torch.split(rows @ axes[:, -count:].flip(1), [len(part) for part in parts]))


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)
