"""Quadratic programs on the simplex, solved exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dposv
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]

TOLERANCE = 1e-10
"""Of the optimality conditions; the value exceeds the minimum by at most twice this share."""
PATIENCE = 3
"""Exchanges that may fail to improve before only one index is exchanged at a time."""


def simplex_qp(matrix: Floats) -> Floats:
    """argmin a' M a over a >= 0, sum a = 1, for a symmetric positive semidefinite M.

    >>> simplex_qp(np.diag([1.0, 3.0])).round(6)
    array([0.75, 0.25])
    """
    diagonal = matrix.diagonal()
    free = diagonal <= 1e-15 * diagonal.mean()
    if free.any():  # a zero on the diagonal makes its row zero: these cost nothing, alone or mixed
        alone: Floats = free / free.sum()
        return alone
    found = _pivoting(matrix)
    return _least_squares(matrix) if found is None else found


def _pivoting(matrix: Floats) -> Floats | None:
    """Block principal pivoting (Júdice and Pires, 1994); None where M is singular.

    The program's solution is a / sum a for the a with a >= 0, Ma >= 1, a'(Ma - 1) = 0. Guess the
    support of a, solve there, exchange all indices that break a sign, until none does: a handful
    of Cholesky factorisations, where an active-set method takes one step per index.
    """
    m = len(matrix)
    support = np.ones(m, dtype=bool)
    fewest, patience = m + 1, PATIENCE
    for _ in range(50 + m):
        inside = np.flatnonzero(support)
        _, values, failed = dposv(matrix[np.ix_(inside, inside)], np.ones(len(inside)))
        if failed:
            return None
        a = np.zeros(m)
        a[inside] = values
        wrong = np.where(support, a < 0, matrix @ a < 1 - TOLERANCE)
        if not (count := int(wrong.sum())):
            solution: Floats = a / a.sum()
            return solution
        if count < fewest:
            fewest, patience = count, PATIENCE
        elif patience:
            patience -= 1
        else:  # Murty's rule, which cannot cycle
            wrong[: np.flatnonzero(wrong)[-1]] = False
        support ^= wrong
    return None


def _least_squares(matrix: Floats) -> Floats:
    """By non-negative least squares, which bears singular matrices.

    With M = R'R, the solution of min |R a|^2 + (1'a - 1)^2 over a >= 0 is a positive multiple of
    the program's: for any direction the best length is a common factor of numerator and
    denominator, so the directions agree, and dividing by the sum gives a.
    """
    m = len(matrix)
    values, vectors = np.linalg.eigh(matrix * (m / np.trace(matrix)))
    root = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T
    found, _ = nnls(np.vstack([root, np.ones(m)]), np.r_[np.zeros(m), 1.0], maxiter=50 * m)
    a: Floats = found / found.sum()
    return a
