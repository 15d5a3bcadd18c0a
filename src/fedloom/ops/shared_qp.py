"""Many programs on the simplex that share their quadratic part: who has a weight in which.

Solved one by one, each program would begin with everyone and factorise matrices of everyone, where
in the end few have a weight. Here all programs take their steps together, from small supports up:
one product of matrices tests the optimality of all of them, and what is factorised is as small as
the supports. The result is a guess that is nearly always right; `simplex_qp` tests and mends it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOLERANCE = 1e-4
"""By which share of the multiplier an optimality condition may be violated: what float32 resolves.
"""
STEPS = 30
"""After so many steps a program is left as it is."""
GROWTH = 8
"""At most a support's size / GROWTH enter it in one step. Of all who look better than a small
support most leave again, once the best of them are in it."""
NUMBERS = 1 << 20
"""Of the matrices that are factorised at a time: 4 MB."""


def likely_supports(shared: Tensor, linear: Tensor) -> Tensor | None:
    """Row i: where argmin a' Q a - 2 b_i' a over a >= 0, sum a = 1 is likely to be positive.

    `shared` is Q [m, m], `linear` holds b_i as rows [n, m]. None where Q is singular. Computed in
    float32, which is twice as fast, unless that makes Q singular.

    >>> likely_supports(torch.eye(2).double(), torch.tensor([[0.0, 0.5], [0, 2]]).double())
    tensor([[ True,  True],
            [False,  True]])
    """
    for dtype in (torch.float32, torch.float64):
        factor, failed = torch.linalg.cholesky_ex(shared.to(dtype))
        if not failed:
            return _grown(shared.to(dtype), linear.to(dtype), factor)
    return None


def _grown(shared: Tensor, linear: Tensor, factor: Tensor) -> Tensor:
    """From the first guess, until nobody is on the wrong side."""
    support = _first_guess(shared, linear, factor)
    padded = _padded(shared, linear)
    waiting = torch.arange(len(linear))
    for _ in range(STEPS):
        a, level = _solutions(*padded, waiting, support[waiting])
        slack = a @ shared - linear[waiting] - level[:, None]
        wrong = _wrong(support[waiting], a, slack, level)
        support[waiting] ^= wrong
        waiting = waiting[wrong.any(1)]
        if not len(waiting):
            break
    return support


def _first_guess(shared: Tensor, linear: Tensor, factor: Tensor) -> Tensor:
    """Those who are best alone; or everyone, where the program without a >= 0 has a >= 0."""
    m = len(shared)
    everyone, _ = _stationary(
        torch.cholesky_solve(linear.T, factor).T,
        torch.cholesky_solve(shared.new_ones(m, 1), factor).T,
    )
    alone = shared.diagonal() - 2 * linear  # values with one weight of 1
    few = alone.topk(min(m, math.ceil(3 * m**0.5)), largest=False).indices
    support = torch.zeros_like(linear, dtype=torch.bool).scatter_(1, few, True)
    return support | (everyone >= 0).all(1, keepdim=True)


def _wrong(support: Tensor, a: Tensor, slack: Tensor, level: Tensor) -> Tensor:
    """Who leaves a support, everyone with a negative weight, and who enters: the most violated."""
    better = ~support & (slack < -TOLERANCE * level.abs()[:, None])
    places = (support.sum(1) // GROWTH).clamp_min(4).clamp_max(support.shape[1])
    worst, who = slack.where(better, math.inf).topk(int(places.max()), largest=False)
    enters = worst.isfinite() & (torch.arange(worst.shape[1]) < places[:, None])
    return torch.zeros_like(support).scatter_(1, who, enters) | (support & (a < 0))


def _padded(shared: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Q and the right-hand sides (b_i, 1) with m more unknowns that are always 0: they fill up the
    smaller supports, so that supports of unlike size are solved in one call."""
    m = len(shared)
    wider = torch.eye(2 * m, dtype=shared.dtype)
    wider[:m, :m] = shared
    right = torch.stack([linear, torch.ones_like(linear)], 2)
    return wider, torch.cat([right, torch.zeros_like(right)], 1)


def _solutions(
    shared: Tensor, right: Tensor, programs: Tensor, support: Tensor
) -> tuple[Tensor, Tensor]:
    """The solutions [., m] if a >= 0 is left out and the others are 0, and their multipliers."""
    m, sizes = support.shape[1], support.sum(1)
    a, level = shared.new_zeros(support.shape), shared.new_zeros(len(support))
    left = sizes.argsort(descending=True)  # neighbours of nearly one size
    while len(left):
        size = int(sizes[left[0]])
        part, left = left.tensor_split([max(1, NUMBERS // size**2)])
        chosen = support[part].byte().topk(size).indices
        place = torch.arange(size)
        inside = chosen.where(place < sizes[part, None], m + place)
        block = shared.flatten().take(inside[:, :, None] * 2 * m + inside[:, None])
        factor, _ = torch.linalg.cholesky_ex(block)
        both = torch.cholesky_solve(right[programs[part, None], inside], factor)
        weights, level[part] = _stationary(*both.unbind(2))
        a[part] = shared.new_zeros(len(part), 2 * m).scatter_(1, inside, weights)[:, :m]
    return a, level


def _stationary(of_linear: Tensor, of_ones: Tensor) -> tuple[Tensor, Tensor]:
    """a with sum 1 and Qa = b + level, from rows of Q^-1 b and of Q^-1 1; and the level."""
    level = (1 - of_linear.sum(1)) / of_ones.sum(1)
    return of_linear + level[:, None] * of_ones, level
