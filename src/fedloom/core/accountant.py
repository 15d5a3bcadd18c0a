"""What Gaussian noise is worth, by Google's dp-accounting.

A *mechanism* is one release of something that a client, or a row, can move by at most `clip`, with
Gaussian noise of `noise` times `clip` on it. Releases add up exactly: k of them with noise z tell
as much as one with noise z / sqrt(k), whatever a later one is made of (Dong, Roth and Su, 2022). So
all that is kept of the past is the sum of 1 / z^2.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

from fedloom.errors import needs_extra


def mechanisms_told(noise: float, count: float = 1) -> float:
    """The sum of 1 / z^2 over `count` mechanisms of the same noise."""
    return count / noise**2


@lru_cache(maxsize=4096)
def epsilon(told: float, delta: float) -> float:
    """The smallest epsilon of mechanisms that told so much, by the analytic formula of the Gaussian
    mechanism (Balle and Wang, 2018); 0 of none.

    >>> round(epsilon(mechanisms_told(noise=1.0), delta=1e-5), 3)
    4.377
    """
    if not told:
        return 0.0
    with needs_extra("privacy"):
        from dp_accounting import get_epsilon_gaussian
    return float(get_epsilon_gaussian(1 / sqrt(told), delta))
