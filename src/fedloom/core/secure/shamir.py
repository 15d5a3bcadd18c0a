"""Shamir's secret sharing: any `needed` shares give the secret, fewer tell nothing of it.

Flower has one (`flwr.common.secure_aggregation.crypto.shamir`), in a field in which Python is slow:
taking together a secret of 20 clients takes it a quarter of a second, and a round has one for each
client. In a prime field, with coefficients that are the same for all secrets, all of them take
milliseconds (docs/secure-aggregation.md has the measurement).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedloom.core.secure.keys import derived

PRIME = 2**256 + 297
"""The smallest prime above all secrets of 32 bytes."""
SHARE_BYTES = 33


def shares(secret: bytes, needed: int, points: Sequence[int], seed: bytes) -> list[bytes]:
    """One share for every point: a polynomial of degree needed - 1 whose value at 0 is the secret,
    and whose other coefficients follow from a seed that nobody else knows."""
    coefficients = [int.from_bytes(secret)]
    for power in range(1, needed):
        wide = derived(seed, "coefficient", power, 0) + derived(seed, "coefficient", power, 1)
        coefficients.append(int.from_bytes(wide) % PRIME)
    return [_value(coefficients, x).to_bytes(SHARE_BYTES) for x in points]


def _value(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def factors(points: Iterable[int]) -> dict[int, int]:
    """What the shares at these points count in the secret (Lagrange's polynomials at 0).

    >>> factors([1, 2]) == {1: 2, 2: PRIME - 1}
    True
    """
    all_points = list(points)
    at_zero = {}
    for x in all_points:
        above = below = 1
        for other in all_points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        at_zero[x] = above * pow(below, -1, PRIME) % PRIME
    return at_zero


def secret_of(held: Mapping[int, bytes], at_zero: Mapping[int, int]) -> bytes:
    """The secret, from shares by their points; what is wrong with them shows in its value."""
    value = sum(factor * int.from_bytes(held[x]) for x, factor in at_zero.items()) % PRIME
    return (value % 2**256).to_bytes(32)
