"""Quadratic programs on the simplex, solved exactly.

The linear algebra is torch's, which keeps to the run's one thread; scipy's takes every core.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-10
"""By how much an optimality condition may be violated. The value exceeds the minimum by at most
twice this share."""
PATIENCE = 3
"""Exchanges without improvement before only one index is exchanged at a time."""


@dataclass(frozen=True)
class Distances:
    """M of a program as rows that are made when they are asked for; all float64.

    With points p_j of which `gram` holds all inner products, M_jk = <p_i - p_j, p_i - p_k> for
    the point i = `origin`, and `noise` is added to the diagonal.
    """

    gram: Tensor
    noise: Tensor
    origin: int

    def __len__(self) -> int:
        return len(self.gram)

    def diagonal(self) -> Tensor:
        own = self.gram[self.origin]
        return self.gram.diagonal() - own - own + own[self.origin] + self.noise

    def __getitem__(self, inside: Tensor) -> Tensor:
        own = self.gram[self.origin]
        rows = self.gram.index_select(0, inside).sub_(own).sub_(own[inside, None])
        rows.add_(own[self.origin])
        rows[torch.arange(len(inside)), inside] += self.noise[inside]
        return rows


def simplex_qp(matrix: Tensor | Distances, start: Tensor | None = None) -> Tensor:
    """argmin a' M a over a >= 0, sum a = 1, for a symmetric positive semidefinite float64 M.

    `start` [m] guesses where a > 0; everywhere unless given. A good guess saves time.

    >>> simplex_qp(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    diagonal = matrix.diagonal()
    free = diagonal <= 1e-15 * diagonal.mean()
    if free.any():  # a zero on the diagonal makes its row zero: any mixture of these has value zero
        return free.double() / free.sum()
    everyone = torch.ones_like(free)
    solution = _pivoting(matrix, everyone if start is None else start)
    if solution is None:
        return _least_squares(matrix[everyone.nonzero().flatten()])
    return solution


def _pivoting(matrix: Tensor | Distances, support: Tensor) -> Tensor | None:
    """Block principal pivoting (Júdice and Pires, 1994); None where M is singular.

    The program's solution is a / sum a for the a with a >= 0, Ma >= 1, a'(Ma - 1) = 0. Guess the
    support of a (where a > 0), solve Ma = 1 there, and exchange all indices that violate one of
    the inequalities, until none does. That takes a handful of Cholesky factorisations, where an
    active-set method takes one step per index.
    """
    m = len(matrix)
    fewest, patience = m + 1, PATIENCE
    for _ in range(50 + m):
        inside = support.nonzero().flatten()
        rows = matrix[inside]
        factor, failed = torch.linalg.cholesky_ex(rows.index_select(1, inside))
        if failed:
            return None
        positive = torch.cholesky_solve(rows.new_ones(len(inside), 1), factor).flatten()
        a = rows.new_zeros(m).index_copy_(0, inside, positive)
        wrong = torch.where(support, a < 0, positive @ rows < 1 - TOLERANCE)
        if not (count := int(wrong.sum())):
            return a / a.sum()
        if count < fewest:
            fewest, patience = count, PATIENCE
        elif patience:
            patience -= 1
        else:  # Murty's rule, which cannot cycle
            wrong[: int(wrong.nonzero()[-1])] = False
        support = support ^ wrong
    return None


def _least_squares(matrix: Tensor) -> Tensor:
    """By non-negative least squares, which also solves programs with singular matrices.

    With M = R'R, the solution of min |R a|^2 + (1'a - 1)^2 over a >= 0 is a positive multiple of
    the program's: for any direction the best length is a common factor of numerator and
    denominator, so the directions agree, and dividing by the sum gives a.
    """
    from scipy.optimize import nnls  # here: every process imports this file, few need half a second

    m = len(matrix)
    values, vectors = torch.linalg.eigh(matrix * (m / matrix.trace()))
    root = values.clamp_min(0).sqrt()[:, None] * vectors.T
    target = torch.zeros(m + 1, dtype=matrix.dtype)
    target[-1] = 1
    stacked = torch.cat([root, matrix.new_ones(1, m)])
    multiple = torch.from_numpy(nnls(stacked.numpy(), target.numpy(), maxiter=50 * m)[0])
    return multiple / multiple.sum()
