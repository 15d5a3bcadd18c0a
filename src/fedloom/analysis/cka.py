"""Linear centred kernel alignment between clients (Kornblith et al. 2019; DualFed Figure 6).

All features must come from the same inputs in the same order. The value is invariant to rotation,
one common scale and shift of either side; it is ruled by the directions of largest variance and
says nothing about classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.analysis.arrays import Array, paired
from fedloom.analysis.geometry import ROUNDING, centred, gram_matrix
from fedloom.errors import BadInput


@dataclass(frozen=True)
class Alignment:
    """CKA of two feature matrices; NaN where one is constant."""

    value: float
    n: int
    null: float
    """Its exact mean when the rows of one side are shuffled; near
    sqrt(pq / ((n + p)(n + q))) for isotropic features of p and q columns, 0 if debiased."""
    debiased: bool


@dataclass(frozen=True, eq=False)
class ClientAlignment:
    """CKA of all pairs of clients."""

    matrix: Tensor
    """[K, K], ones on the diagonal."""
    mean: float
    """Over the unordered pairs of different clients."""
    n: int
    null: float
    """Mean over the same pairs of what shuffled rows give."""
    debiased: bool


def linear_cka(x: Array, y: Array, debiased: bool = False) -> Alignment:
    """CKA of two representations of the same inputs.

    Debiased values (U-centred Gram matrices) can be negative and need four rows; use them where
    n is below ten times the number of columns.

    >>> x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> round(linear_cka(x, 7 - 3 * x).value, 12)
    1.0
    >>> linear_cka(x[:, :1], x[:, 1:]).value
    0.0
    """
    both = cka_between_clients([x, y], debiased)
    return Alignment(both.mean, both.n, both.null, debiased)


def cka_between_clients(features: Sequence[Array], debiased: bool = False) -> ClientAlignment:
    """CKA of every pair of clients' features of the same inputs.

    >>> x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> pairs = cka_between_clients([x, x * torch.tensor([3.0, 1.0]), x[:, :1]])
    >>> [round(float(value), 5) for value in pairs.matrix[0]]  # 10 / sqrt(164), 1 / sqrt(2)
    [1.0, 0.78087, 0.70711]
    """
    if len(features) < 2:
        raise BadInput("CKA compares clients with each other; give the features of two or more")
    matrices = [centred(x) for x in paired(*features)]
    sizes = torch.stack([x.square().sum(1) for x in matrices])
    return _alignment(_inner_products(matrices), sizes, debiased)


def cka_of_grams(grams: Sequence[Tensor], debiased: bool = False) -> ClientAlignment:
    """From the inner products of rows about their mean, as `geometry.FewColumns` holds them.

    >>> x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])  # of mean zero
    >>> round(cka_of_grams([x @ x.T, x[:, :1] @ x[:, :1].T]).mean, 5)
    0.70711
    """
    return _alignment(*_of_grams(grams), debiased)


def plain_and_debiased_cka(grams: Sequence[Tensor]) -> tuple[ClientAlignment, ClientAlignment]:
    """Both, from the same inner products of Gram matrices.

    >>> x = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    >>> plain, debiased = plain_and_debiased_cka([x @ x.T, x[:, :1] @ x[:, :1].T])
    >>> round(plain.mean, 3), debiased.mean == cka_between_clients([x, x[:, :1]], True).mean
    (0.707, True)
    """
    inner, sizes = _of_grams(grams)
    return _alignment(inner, sizes, False), _alignment(inner, sizes, True)


def _of_grams(grams: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Inner products of Gram matrices [K, K], and the squared norms of all rows [K, n]."""
    flat = torch.stack([gram.flatten() for gram in grams])
    return flat @ flat.T, torch.stack([gram.diagonal() for gram in grams])


def _alignment(products: Tensor, sizes: Tensor, debiased: bool) -> ClientAlignment:
    """From inner products of Gram matrices [K, K] and the squared norms of all rows [K, n]."""
    clients, n = sizes.shape
    inner, null = products, torch.outer(sizes.sum(1), sizes.sum(1)) / max(n - 1, 1)
    if debiased:
        inner, null = _debiased(inner, sizes), torch.zeros_like(inner)
    own = inner.diagonal()
    scale = torch.where(own > ROUNDING * products.diagonal(), own, torch.nan).sqrt()
    alignment = inner / torch.outer(scale, scale)
    first, second = torch.triu_indices(clients, clients, 1)
    return ClientAlignment(
        matrix=alignment,
        mean=float(alignment[first, second].mean()),
        n=n,
        null=float((null / torch.outer(scale, scale))[first, second].mean()),
        debiased=debiased,
    )


def _inner_products(matrices: list[Tensor]) -> Tensor:
    """<XX', YY'> of all pairs [K, K], or |X'Y|^2, which is the same, where that is cheaper."""
    count, n, d = len(matrices), len(matrices[0]), max(x.shape[1] for x in matrices)
    if n * (d + count) < (count + 1) / 2 * d**2:
        return _of_grams([gram_matrix(x) for x in matrices])[0]
    inner = matrices[0].new_zeros(len(matrices), len(matrices))
    for i, x in enumerate(matrices):
        for j, y in enumerate(matrices[: i + 1]):
            inner[i, j] = inner[j, i] = (x.T @ y).square().sum()
    return inner


def _debiased(inner: Tensor, sizes: Tensor) -> Tensor:
    """Inner products of U-centred Gram matrices, from those of centred ones and their diagonals.

    With zero row sums, emptying the diagonal a of K leaves the row sums -a, so that centring
    anew takes <K, L> to <K, L> - n/(n-2) a'b + (sum a)(sum b) / ((n-1)(n-2)).
    """
    n = sizes.shape[1]
    if n < 4:
        return torch.full_like(inner, torch.nan)
    totals = sizes.sum(1)
    return inner - n / (n - 2) * sizes @ sizes.T + torch.outer(totals, totals) / ((n - 1) * (n - 2))
