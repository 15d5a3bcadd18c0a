"""Linear algebra that several diagnostics share, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-12
"""A column whose spread is this small beside its size is constant but for rounding."""

PANEL = 72
"""Rows of a panel of a Gram matrix: few, but a multiple of the rows that kernels take at a time."""


def centred(x: Tensor) -> Tensor:
    """Columns less their means; a column that is constant up to rounding becomes exactly zero.

    >>> centred(torch.tensor([[0.1, 0.0], [0.1, 2.0], [0.1, 4.0]], dtype=torch.float64))
    tensor([[ 0., -2.],
            [ 0.,  0.],
            [ 0.,  2.]], dtype=torch.float64)
    """
    mean, low, high = x.mean(0), x.amin(0), x.amax(0)
    constant = torch.maximum(high - mean, mean - low) <= ROUNDING * torch.maximum(high, -low)
    moved = x - mean
    return moved.masked_fill_(constant, 0.0) if constant.any() else moved


def gram_matrix(x: Tensor) -> Tensor:
    """xx', by panels of the lower half, which save up to half of the whole product's operations.

    >>> gram_matrix(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[5., 6.],
            [6., 9.]])
    """
    gram = x.new_empty(len(x), len(x))
    for top in range(0, len(x), PANEL):
        end = min(top + PANEL, len(x))
        gram[top:end, :end] = x[top:end] @ x[:end].T
        gram[:top, top:end] = gram[top:end, :top].T
    return gram


@dataclass(frozen=True, eq=False)
class FewColumns:
    """Features about their mean, for what reads only distances and inner products of rows.

    >>> rows = torch.tensor([[1.0, 5.0, 1.0], [3.0, 5.0, 1.0]])
    >>> FewColumns.of(rows).gram
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """

    columns: Tensor
    """The rows up to a rotation, in at most as many columns as there are rows."""
    gram: Tensor
    """Their inner products [n, n]."""

    @classmethod
    def of(cls, x: Tensor) -> FewColumns:
        """Of features in any coordinates, computed in float64."""
        moved = centred(x.double())
        gram = gram_matrix(moved)
        return cls(in_few_columns(moved, gram=gram), gram)

    def among(self, rows: Tensor) -> FewColumns:
        """Of some of the rows, about their own mean."""
        return self if rows.all() else FewColumns.of(self.columns[rows])


def in_few_columns(x: Tensor, spanning: int | None = None, gram: Tensor | None = None) -> Tensor:
    """The same rows up to a rotation, in at most as many columns as there are rows.

    Whatever reads only inner products of rows finds the same in them: of a wide layer it needs the
    Gram matrix. That is factorised as it is but for its own rounding, which could make it negative.
    Where only inner products with the first rows are read, their number, `spanning`, is enough
    columns for all. `gram`: of those rows, if it is known.

    >>> rows = torch.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 4.0]], dtype=torch.float64)
    >>> few, fewer = in_few_columns(rows), in_few_columns(rows, 1)
    >>> few.shape, torch.allclose(few @ few.T, rows @ rows.T)
    (torch.Size([2, 2]), True)
    >>> fewer.shape, torch.allclose(fewer @ fewer[0], rows @ rows[0])
    (torch.Size([2, 1]), True)
    """
    first = x[:spanning]
    if x.shape[1] <= len(first):
        return x
    gram = gram_matrix(first) if gram is None else gram
    rounding = 8 * torch.finfo(x.dtype).eps * gram.diagonal().sum()
    lower, failed = torch.linalg.cholesky_ex(gram + rounding * torch.eye(len(gram), dtype=x.dtype))
    products = x[len(first) :] @ first.T
    others = torch.linalg.solve_triangular(lower.T, products, upper=True, left=False)
    columns: Tensor = torch.cat([lower, others])
    # A column of no more than rounding belongs to a row that others make up.
    small = lower.diagonal().square() <= 4 * rounding
    if failed or bool((columns[:, small].square() > 4 * rounding).any()):
        values, vectors = torch.linalg.eigh(gram_matrix(x))
        columns = vectors * values.clamp(min=0).sqrt()
    else:
        columns = columns * ~small
    return columns


def directions(z: Tensor) -> tuple[Tensor, Tensor]:
    """Rows at length one (zero rows stay zero), and which rows have a direction.

    >>> directions(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]), tensor([ True, False]))
    """
    length = torch.linalg.vector_norm(z, dim=1)
    some = length > 0
    return z / torch.where(some, length, 1.0)[:, None], some


def squared_distances(x: Tensor) -> Tensor:
    """Squared Euclidean distances between all rows [n, n], the diagonal exactly zero.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64))
    tensor([[ 0., 25.],
            [25.,  0.]], dtype=torch.float64)
    """
    moved = centred(x)  # smaller numbers, less cancellation
    gram = moved @ moved.T  # in one product, so that equal rows are equally far from any other
    size = gram.diagonal()
    return (size[:, None] + size - 2 * gram).clamp_min(0).fill_diagonal_(0)


def principal_components(x: Tensor, count: int) -> tuple[Tensor, float]:
    """Scores of the leading components [n, count], and their share of the variance.

    Fewer columns come back where n or d is smaller; a component's largest score is positive, so
    that the result is one and the same everywhere. The share of constant features is NaN.

    >>> scores, share = principal_components(torch.tensor([[1.0, 1], [0, 0], [-1, -1]]).double(), 1)
    >>> scores.flatten(), share
    (tensor([ 1.4142,  0.0000, -1.4142], dtype=torch.float64), 1.0)
    """
    moved = centred(x)
    n, d = moved.shape
    if d <= n:
        values, vectors = torch.linalg.eigh(moved.T @ moved)
        scores = moved @ vectors
    else:
        values, vectors = torch.linalg.eigh(gram_matrix(moved))
        scores = vectors * values.clamp_min(0).sqrt()
    scores = scores.flip(1)[:, :count]
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    share = values.flip(0)[:count].sum() / values.sum()
    return scores * largest.sign(), float(share)
