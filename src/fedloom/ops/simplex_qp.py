"""Quadratic programs on the simplex, solved exactly as non-negative least squares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]


def simplex_qp(matrix: Floats) -> Floats:
    """argmin a' M a over a >= 0, sum a = 1, for a positive semidefinite M.

    With M = R'R, the solution of min ||R a||^2 + (1'a - 1)^2 over a >= 0 is a positive multiple
    of the program's: for any direction the best length is a common factor of numerator and
    denominator, so the directions agree, and dividing by the sum gives a.

    >>> simplex_qp(np.diag([1.0, 3.0])).round(6)
    array([0.75, 0.25])
    """
    m = len(matrix)
    size = float(np.trace(matrix)) / m
    if size == 0:
        return np.full(m, 1 / m)
    values, vectors = np.linalg.eigh(matrix / size)
    root = np.sqrt(np.clip(values, 0, None))[:, None] * vectors.T
    target = np.r_[np.zeros(m), 1.0]
    found, _ = nnls(np.vstack([root, np.ones((1, m))]), target, maxiter=50 * m)
    a: Floats = found / found.sum()
    return a
